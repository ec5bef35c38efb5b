"""Cases and processes shared by the runtime tests: real gloo processes that run a function by name, one spawn a world."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from coccl_dsl.pipeline import Collective

HERE = Path(__file__).parent
GROUP = 128


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.reshape(-1).view(torch.int32 if t.element_size() == 4 else torch.int16)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(bits(a), bits(b))


def inputs(n: int, count: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(count, generator=g).to(dtype) for _ in range(n)]


def counts_for(kind: str, n: int, large: int = 100003) -> list[int]:
    """Elements of the whole tensor; of a shard, times n, where shards are fixed by the collective (all_gather's input is a shard)."""
    found = [0, 1, GROUP - 1, GROUP + 1, n - 1, n * GROUP + 1, large]
    return [c * n for c in found] if kind in ("reduce_scatter", "all_to_all") else found


def mesh_for(c: Collective, sizes: tuple[int, ...]) -> dict[str, int] | None:
    return dict(zip(c.axes, sizes, strict=True)) if c.axes else None


def spawn(
    script: str, world: int, *arguments: str, timeout: float = 240, env: dict[str, str] | None = None, expect: int = 0
) -> list[str]:
    """Run tests/runtime/SCRIPT on `world` processes; returns their outputs. A process that fails, or is late, fails the test with its output."""
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    processes = []
    for rank in range(world):
        own = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        own["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")])
        processes.append(
            subprocess.Popen(
                [sys.executable, str(HERE / script), *arguments],
                env=own | (env or {}),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    end, outputs = time.monotonic() + timeout, []
    late = False
    for p in processes:
        try:
            outputs.append(p.communicate(timeout=max(0.5, end - time.monotonic()))[0])
        except subprocess.TimeoutExpired:
            late = True
            for q in processes:
                q.kill()
            outputs.append(p.communicate()[0])
    bad = [r for r, p in enumerate(processes) if p.returncode != expect]
    assert not late and not bad, f"late: {late}, ranks {bad} failed:\n" + "\n".join(
        f"--- rank {r}\n{outputs[r][-3000:]}" for r in range(world)
    )
    return outputs
