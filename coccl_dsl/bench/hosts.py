"""Two hosts on one Linux machine: network namespaces joined by a veth pair, its rate set with tc. For tests and benchmarks on CPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DEVICE = "eth0"
PORT = 29511


@dataclass(frozen=True)
class Hosts:
    """names of the namespaces, and their addresses on the link between them."""

    names: tuple[str, str]
    addresses: tuple[str, str] = ("10.213.0.1", "10.213.0.2")


def _ip(*arguments: str) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")


def unavailable() -> str:
    """Why two namespaces cannot be made here, or ""."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"`{tool}` (iproute2) is not installed"
    try:
        with two_hosts("1gbit"):
            return ""
    except OSError as e:
        return str(e)


@contextmanager
def two_hosts(rate: str | None = None) -> Iterator[Hosts]:
    """Two namespaces joined by a link of `rate` each way, such as 200mbit. Raises OSError where that is not permitted."""
    names = (f"coccl{os.getpid()}a", f"coccl{os.getpid()}b")
    ends = (f"cv{os.getpid()}a", f"cv{os.getpid()}b")
    hosts = Hosts(names)
    made: list[str] = []
    try:
        for name in names:
            _ip("ip", "netns", "add", name)
            made.append(name)
        _ip("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, hosts.addresses, strict=True):
            _ip("ip", "link", "set", end, "netns", name, "name", DEVICE)
            inside = ("ip", "-n", name)
            _ip(*inside, "addr", "add", f"{address}/24", "dev", DEVICE)
            _ip(*inside, "link", "set", "lo", "up")
            _ip(*inside, "link", "set", DEVICE, "up")
            if rate:
                shape = ("root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
                _ip("tc", "-n", name, "qdisc", "add", "dev", DEVICE, *shape)
        yield hosts
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def run_nodes(
    hosts: Hosts, script: Path, *arguments: str, local: int = 2, timeout: float = 300.0, path: tuple[Path, ...] = ()
) -> list[str]:
    """Run `script` with `local` processes on each host, in the environment that torchrun makes. Returns their outputs in rank order.

    path: folders for PYTHONPATH. Raises RuntimeError with the output of what failed or was late.
    """
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="coccl_hosts_") as folder:
        logs = [Path(folder) / f"{rank}.log" for rank in range(2 * local)]
        try:
            for rank, log in enumerate(logs):
                node = rank // local
                own = {
                    "RANK": rank, "WORLD_SIZE": 2 * local, "LOCAL_RANK": rank % local, "LOCAL_WORLD_SIZE": local, "GROUP_RANK": node,
                    "MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": DEVICE, "OMP_NUM_THREADS": 1,
                    "PYTHONPATH": os.pathsep.join([*map(str, path), *filter(None, [os.environ.get("PYTHONPATH")])]),
                }  # fmt: skip
                command = ["ip", "netns", "exec", hosts.names[node], sys.executable, str(script), *arguments]
                with log.open("wb") as out:
                    env = os.environ | {k: str(v) for k, v in own.items()}
                    processes.append(subprocess.Popen(command, env=env, stdout=out, stderr=out))
            end = time.monotonic() + timeout
            while any(p.poll() is None for p in processes) and time.monotonic() < end:
                if any(p.poll() for p in processes):
                    end = min(end, time.monotonic() + 3)
                time.sleep(0.05)
        finally:
            late = [r for r, p in enumerate(processes) if p.poll() is None]
            for p in processes:
                if p.poll() is None:
                    p.kill()
                p.wait()
        outputs = [log.read_text(errors="replace") for log in logs]
        bad = [r for r, p in enumerate(processes) if p.returncode]
        if bad:
            told = "\n".join(f"--- rank {r}\n{outputs[r][-3000:]}" for r in bad)
            raise RuntimeError(f"ranks {bad} failed (late: {late}):\n{told}")
        return outputs
