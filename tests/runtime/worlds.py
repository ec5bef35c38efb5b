"""Cases and processes shared by the runtime tests: real gloo processes that run a function by name, one spawn a world."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from coccl_dsl.pipeline import Collective

HERE = Path(__file__).parent
GROUP = 128
# Of the script that trains in four dimensions, tests/torch/train_4d.py.
POLICY = """
arena_mib = 8
[[rule]]
on = ["dp", "fsdp", "tp", "pp"]
compressor = "int8"
min_bytes = 0
"""


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


def python_path() -> str:
    """For processes that import what the tests share."""
    paths = [HERE, HERE.parent.parent, os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(map(str, paths))


def free_ports(count: int) -> str:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    found = ",".join(str(s.getsockname()[1]) for s in sockets)
    for s in sockets:
        s.close()
    return found


def torchrun(folder: Path, script: Path, *arguments: str, world: int, timeout: float = 240, **env: str) -> str:
    """Run a script under torchrun, with our entry point as an installed package has it; returns its output. A script that fails fails the test,
    and so does one that is late, with its output."""
    info = folder / "coccl_dsl-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: coccl-dsl\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ncoccl_dsl = coccl_dsl.autoload:load\n")
    paths = os.pathsep.join([str(folder), str(script.parent), python_path()])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world}"]
    run = subprocess.Popen(
        [*command, str(script), *arguments],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    late = False
    try:
        output, _ = run.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        late = True
        run.terminate()  # torchrun then ends its ranks, which a kill would leave behind
        try:
            output, _ = run.communicate(timeout=40)
        except subprocess.TimeoutExpired:
            run.kill()
            output, _ = run.communicate()
    assert not late and run.returncode == 0, f"late: {late}\n{output[-6000:]}"
    return output


def spawn(
    script: str, world: int, *arguments: str, timeout: float = 240, env: dict[str, str] | None = None, expect: int = 0
) -> list[str]:
    """Run tests/runtime/SCRIPT on `world` processes; returns their outputs. A process that fails, or is late, fails the test with its output."""
    own = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_ports(1), "OMP_NUM_THREADS": "1"}
    own |= {"PYTHONPATH": python_path(), **(env or {})}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "forked.py"), folder, str(world), str(HERE / script), *arguments]
        # A session of its own: a late world is ended with all its ranks.
        run = subprocess.Popen(
            command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        late = False
        try:
            said, _ = run.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            late = True
            os.killpg(run.pid, signal.SIGKILL)
            said, _ = run.communicate()
        found = [Path(folder, str(r)) for r in range(world)]
        outputs = [f.read_text(errors="replace") if f.exists() else "" for f in found]
        ended = Path(folder, "codes")
        codes = json.loads(ended.read_text()) if ended.exists() else [None] * world
    bad = [r for r, code in enumerate(codes) if code != expect]
    assert not late and not bad, f"late: {late}, ranks {bad} failed:\n{said}" + "\n".join(
        f"--- rank {r}\n{outputs[r][-3000:]}" for r in range(world)
    )
    return outputs
