"""--run N: run a collective for real, N processes on this machine, on the gradients of a small language model, and say what came out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..pipeline import Collective, World
from ..plan import show
from .show import print_table, same_bits

TIMEOUT = 120.0
# How long the others may go on, once a rank has failed, to tell their own reasons.
GRACE = 3.0


@dataclass(frozen=True)
class Job:
    """What a process has to know: it is written to its command line as JSON."""

    target: str
    compressors: dict[str, str]
    mesh: dict[str, int] | None
    world: int
    root: int
    op: str
    dtype: str
    folder: str


def run(collective: Collective, target: str, world: World, dtype: str, compressors: dict[str, str]) -> int:
    """Returns 0 when every rank is done and the replicas that the header promises hold the same bits. Raises RuntimeError when a rank fails."""
    collective.trace(world, dtype=dtype)  # a text that does not prove fails here, once, with its diagnostics
    mesh = dict(zip(collective.axes, world.sizes, strict=True)) if collective.axes else None
    with tempfile.TemporaryDirectory(prefix="coccl_run_") as folder:
        job = Job(str(Path(target)), compressors, mesh, world.count, world.root, world.op, dtype, folder)
        start = time.perf_counter()
        results = _spawn(job)
        seconds = time.perf_counter() - start
    return _report(collective, job, results, seconds)


def _spawn(job: Job) -> list[dict[str, Any]]:
    """Run all ranks and return what each has to say. Ends every process that it started, whatever happens."""
    package = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])}
    if sys.platform == "linux":
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(job.world):
            log = open(Path(job.folder) / f"{rank}.log", "wb")  # noqa: SIM115 - the process keeps it
            command = [sys.executable, "-m", "coccl_dsl.cli.worker", json.dumps(asdict(job)), str(rank)]
            processes.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
            log.close()
        _watch(job, processes)
    finally:
        for p in processes:
            if p.poll() is None:
                p.kill()
            p.wait()
    return [json.loads((Path(job.folder) / f"{rank}.json").read_text()) for rank in range(job.world)]


def _watch(job: Job, processes: list[subprocess.Popen[bytes]]) -> None:
    """Return when all have ended well. Raises RuntimeError with the messages of those that failed first."""
    deadline = time.monotonic() + TIMEOUT
    failed: list[int] = []
    while True:
        codes = [p.poll() for p in processes]
        failed += [r for r, code in enumerate(codes) if code not in (None, 0) and r not in failed]
        if failed and deadline > time.monotonic() + GRACE:
            deadline = time.monotonic() + GRACE
        if all(code is not None for code in codes) or (failed and time.monotonic() > deadline):
            break
        if time.monotonic() > deadline:
            waiting = [r for r, code in enumerate(codes) if code is None]
            raise RuntimeError(f"ranks {waiting} have not ended within {TIMEOUT:g} s")
        time.sleep(0.02)
    if failed:
        reasons: dict[str, list[int]] = {}
        for rank in failed:
            reasons.setdefault(_reason(job, rank, processes[rank].returncode), []).append(rank)
        told = [
            f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}: {why}"
            for why, ranks in reasons.items()
        ]
        raise RuntimeError("\n".join(["the run failed", *told]))


def _reason(job: Job, rank: int, code: int) -> str:
    told = Path(job.folder) / f"{rank}.error"
    if told.is_file():
        return told.read_text().strip()
    log = (Path(job.folder) / f"{rank}.log").read_text(errors="replace").strip().splitlines()
    ended = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"{ended}: {log[-1]}" if log else ended


# ---------------------------------------------------------------- report


def _report(collective: Collective, job: Job, results: list[dict[str, Any]], seconds: float) -> int:
    kind, divergent = collective.kind, collective.program(job.dtype).divergent
    replicas = kind in ("all_reduce", "all_gather", "broadcast")
    rows, all_equal = [], True
    names = [g["name"] for g in results[0]["groups"]]
    for i, name in enumerate(names):
        parts = [r["groups"][i] for r in results]
        equal = len({p["digest"] for p in parts}) == 1
        all_equal = all_equal and equal
        rows.append(_row(name, parts, _word(equal, replicas)))
    totals = [_total(r["groups"]) for r in results]
    rows.append(_row("total", totals, _word(all_equal, replicas)))
    first = results[0]
    print(
        f"{collective.name} : {kind} on {job.world} processes, {first['transport']}, {first['device']}, {job.dtype}, {job.op}"
    )
    print("  gradients of one step of a 4-layer language model on Python's help texts, each process with its own batch")
    head = ["tensors", "elements", "relative error", "wire bytes a rank", "uncompressed", "ratio", "same bits", "ms"]
    print_table(head, rows, right=(1, 2, 3, 4, 5, 7))
    if not replicas:
        print(f"  same bits: {same_bits(kind, divergent)}")
    if first["first"]:
        print(
            f"  {', '.join(first['first'])}: these are first calls, which send the tensor's own dtype to set the states"
        )
    print(f"  relative error: |result - exact| / |exact| over all ranks, exact in float64; {seconds:.1f} s in all")
    if replicas and not all_equal and not divergent:
        print(
            "coccl-compile: error: the ranks hold different bits, which the text was proven not to do", file=sys.stderr
        )
        return 1
    return 0


def _word(equal: bool, replicas: bool) -> str:
    return ("yes" if equal else "NO") if replicas else "-"


def _total(groups: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: sum(g[key] for g in groups) for key in ("elements", "error", "exact", "sent", "plain", "seconds")}


def _row(name: str, parts: list[dict[str, Any]], bits: str) -> list[str]:
    """One line from every rank's part: the largest of bytes and times, errors over all ranks."""
    sent, plain = max((p["sent"], p["plain"]) for p in parts)
    exact, error = sum(p["exact"] for p in parts), sum(p["error"] for p in parts)
    relative = f"{(error / exact) ** 0.5:.2e}" if exact else ("0" if not error else "inf")
    ms = f"{1e3 * max(p['seconds'] for p in parts):.1f}"
    return [name, f"{parts[0]['elements']:,}", relative, f"{sent:,}", f"{plain:,}", show.ratio(sent, plain), bits, ms]
