"""Text that every Python ships: the standard library's sources and pydoc's topics, as bytes. A batch depends on the step and the seed alone."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch

BLOCK = 1 << 16
EVERY = 10  # one block in so many is for validation


class Text:
    """`train` and `validation` are uint8 tensors. The same Python gives the same bytes; another version's sources differ."""

    def __init__(self, most_bytes: int = 1 << 25):
        library = Path(sysconfig.get_paths()["stdlib"])
        files = [library / "pydoc_data" / "topics.py", *sorted(library.glob("*.py")), *sorted(library.glob("*/*.py"))]
        held, size = [], 0
        for path in files:
            if "site-packages" not in path.parts and size < most_bytes:
                held.append(path.read_bytes())
                size += len(held[-1])
        whole = torch.frombuffer(bytearray(b"".join(held)[:most_bytes]), dtype=torch.uint8)
        blocks = whole[: len(whole) // BLOCK * BLOCK].view(-1, BLOCK)
        chosen = torch.arange(len(blocks)) % EVERY == EVERY - 1
        self.train, self.validation = blocks[~chosen].reshape(-1), blocks[chosen].reshape(-1)

    def batch(
        self, seed: int, rows: int, length: int, part: tuple[int, int], validation: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and what follows them, int64 [rows / parts, length]: part (i, n) of a batch of `rows` that is the same for every mesh."""
        held = self.validation if validation else self.train
        g = torch.Generator().manual_seed(seed)
        starts = torch.randint(len(held) - length - 1, (rows,), generator=g)
        own = starts.view(part[1], -1)[part[0]]
        tokens = torch.stack([held[s : s + length + 1] for s in own.tolist()]).long()
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
