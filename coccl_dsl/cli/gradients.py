"""Real gradients to run a collective on: one training step of a small language model on Python's own help texts.

Random numbers flatter a compressor. These have what real gradients have: scales that differ by orders of magnitude between layers, rows of
zeros for bytes that do not occur, heavy tails.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

VOCABULARY = 256
WIDTH = 256
LAYERS = 4
HEADS = 4
LENGTH = 128  # bytes a sequence
BATCH = 8  # sequences a rank


@lru_cache(maxsize=1)
def _sequences() -> Tensor:
    """The text as int64[sequences, LENGTH + 1], one byte an element."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    count = len(text) // (LENGTH + 1)
    flat = torch.frombuffer(bytearray(text[: count * (LENGTH + 1)]), dtype=torch.uint8)
    return flat.view(count, LENGTH + 1).long()


def _parameters(seed: int) -> dict[str, Tensor]:
    """`group.name` -> float32 parameter. From a generator of its own: the caller's random state stays as it was."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float = 0.02) -> Tensor:
        return torch.randn(shape, generator=generator) * std

    parameters = {"embedding.token": normal(VOCABULARY, WIDTH), "embedding.position": normal(LENGTH, WIDTH)}
    deep = 0.02 / math.sqrt(2 * LAYERS)  # keeps the residual stream's size independent of the depth
    for i in range(LAYERS):
        parameters |= {
            f"attention.qkv{i}": normal(3 * WIDTH, WIDTH),
            f"attention.out{i}": normal(WIDTH, WIDTH, std=deep),
            f"mlp.up{i}": normal(4 * WIDTH, WIDTH),
            f"mlp.down{i}": normal(WIDTH, 4 * WIDTH, std=deep),
            f"norm.attention{i}": torch.ones(WIDTH),
            f"norm.mlp{i}": torch.ones(WIDTH),
        }
    parameters |= {"norm.last": torch.ones(WIDTH), "head.out": normal(VOCABULARY, WIDTH)}
    return {name: p.requires_grad_() for name, p in parameters.items()}


def _attention(x: Tensor, qkv: Tensor, out: Tensor) -> Tensor:
    batch, length, width = x.shape
    q, k, v = F.linear(x, qkv).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(mixed.transpose(1, 2).reshape(batch, length, width), out)


def _loss(p: dict[str, Tensor], sequences: Tensor) -> Tensor:
    """Mean cross-entropy, in nats a byte, of each next byte of int64[batch, LENGTH + 1]."""
    x = F.embedding(sequences[:, :-1], p["embedding.token"]) + p["embedding.position"]
    for i in range(LAYERS):
        normal = F.layer_norm(x, (WIDTH,), p[f"norm.attention{i}"])
        x = x + _attention(normal, p[f"attention.qkv{i}"], p[f"attention.out{i}"])
        normal = F.layer_norm(x, (WIDTH,), p[f"norm.mlp{i}"])
        x = x + F.linear(F.gelu(F.linear(normal, p[f"mlp.up{i}"])), p[f"mlp.down{i}"])
    logits = F.linear(F.layer_norm(x, (WIDTH,), p["norm.last"]), p["head.out"])
    return F.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())


def gradients(rank: int, world: int, seed: int = 0) -> dict[str, Tensor]:
    """What `rank` of `world` would bring to an all-reduce: its gradients after one step, on the CPU.

    Returns group (embedding, attention, mlp, norm, head) -> flat float32 tensor, 3.3 M elements in all. All ranks have the same model, each has
    its own 8 sequences of 128 bytes; equal arguments give equal bits at an equal number of threads. Raises ValueError where rank is not in
    range(world), or where the text has too few sequences for world ranks.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is not in range({world})")
    sequences = _sequences()
    if world * BATCH > len(sequences):
        raise ValueError(f"the text has {len(sequences)} sequences, {world} ranks need {world * BATCH}")
    order = torch.randperm(len(sequences), generator=torch.Generator().manual_seed(seed))
    parameters = _parameters(seed)
    with torch.enable_grad():
        loss = _loss(parameters, sequences[order[rank * BATCH : (rank + 1) * BATCH]])
        grads = torch.autograd.grad(loss, list(parameters.values()))
    groups: dict[str, list[Tensor]] = {}
    for name, grad in zip(parameters, grads, strict=True):
        groups.setdefault(name.split(".")[0], []).append(grad.flatten())
    return {group: torch.cat(parts) for group, parts in groups.items()}
