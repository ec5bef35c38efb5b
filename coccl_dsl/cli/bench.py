"""coccl-bench: compiled collectives beside NCCL on this machine's GPUs.

coccl-bench all_reduce --set int8 int4 -b 16M -e 256M -f 4 --json benchmarks/results/ar.json
coccl-bench --calibrate                                   the table that algorithm="auto" goes by
torchrun --nproc_per_node 2 -m coccl_dsl.cli.bench two_shot --set int8
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from math import inf, isfinite
from pathlib import Path
from typing import Any, NoReturn

from ..diagnostics import CompileError

TIERS = {"nvlink": {}, "shm": {"NCCL_P2P_DISABLE": "1"}, "socket": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}}
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# What options that only rows take are where they are not given.
ROWS: dict[str, Any] = {"dtype": ["bf16"], "mode": ["graph"], "transport": "auto", "slices": None, "iterations": 20, "repeats": 5, "no_f32": False, "plot": None}  # fmt: skip
PICTURES = (".svg", ".png")
ITEM = 2  # bytes of bf16, which a calibration measures


class Parser(argparse.ArgumentParser):
    """A mistake is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def size(text: str) -> int:
    """16M -> bytes."""
    unit = UNITS.get(text[-1:].upper())
    try:
        value = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 65536, 64K, 16M or 1G") from None
    if not 1 <= value < inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 65536, 64K, 16M or 1G")
    return int(value)


def factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (value > 1 and isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text!r} does not lead from size to size; write a factor above 1, such as 4")
    return value


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option that is a whole number."""

    def whole(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: write a whole number, {least} or more")
        return int(text)

    return whole


def parser(made: type[argparse.ArgumentParser] = Parser) -> argparse.ArgumentParser:
    """The command line. made: another class where a mistake must not end the process, as in a notebook."""
    p = made(
        prog="coccl-bench",
        description="Compiled collectives beside NCCL: times, bandwidths, ratio to NCCL on the same dtype and on float32, share of what the wire allows. Every result is compared with simulate bit for bit.",
        epilog="example: coccl-bench all_reduce --set int8 int4 -b 16M -e 256M -f 4 --mode graph eager --json out.json",
    )
    p.add_argument(
        "--calibrate",
        action="store_true",
        help='measure what algorithm="auto" chooses from (all_reduce, reduce_scatter, all_gather, all_to_all, or those named; 4K to 256M by 4, '
        "int8 and int4, unless said otherwise) and keep it in the user's cache directory, or where --json says",
    )
    p.add_argument(
        "--device",
        default="cuda",
        choices=["cuda", "cpu"],
        help="with --calibrate: cpu measures gloo between processes",
    )
    p.add_argument(
        "collective",
        nargs="*",
        help="all_reduce, reduce_scatter, all_gather, all_to_all, send_recv, the name of an algorithm, or a .coll file; "
        "with --calibrate one of the first four",
    )
    p.add_argument(
        "--set",
        dest="compressors",
        nargs="+",
        default=None,
        metavar="COMPRESSOR",
        help="compressors to measure, for every compressor of the text (default int8)",
    )
    p.add_argument("-b", "--begin", type=size, default=None, help="smallest size in bytes (default 1M)")
    p.add_argument("-e", "--end", type=size, default=size("256M"), help="largest size (default 256M)")
    p.add_argument("-f", "--factor", type=factor, default=4.0, help="factor between sizes, above 1 (default 4)")
    p.add_argument("--dtype", nargs="+", choices=["f32", "bf16", "f16"])
    p.add_argument(
        "--mode",
        nargs="+",
        choices=["graph", "eager", "eager_same"],
        help="graph replays (default), eager calls with new pointers, eager calls with one pointer",
    )
    p.add_argument(
        "--transport",
        choices=["auto", "symm", "nccl", "nccl+collectives", "torch", "torch+collectives"],
    )
    p.add_argument("--slices", type=at_least(1), help="slices in flight (default: the text's first)")
    p.add_argument("-n", "--iterations", type=at_least(1), help="calls a repeat (default 20)")
    p.add_argument("--repeats", type=at_least(1), help="interleaved repeats; the ratio is their median (default 5)")
    p.add_argument("--ranks", type=at_least(2), help="processes to start (default: one a GPU)")
    p.add_argument(
        "--tier",
        choices=list(TIERS),
        help="link to use on both sides (default nvlink): shm and socket turn peer access off",
    )
    p.add_argument("--no-f32", action="store_true", help="leave out NCCL on float32")
    p.add_argument("--json", type=Path, help="write all rows, with machine, versions, commit and command")
    p.add_argument("--plot", type=Path, help="write time against size as SVG or PNG (needs matplotlib)")
    return p


def parse(arguments: list[str], of: type[argparse.ArgumentParser] = Parser) -> argparse.Namespace:
    """The command line's options, after defaults that depend on each other. of: as for `parser`."""
    made = parser(of)
    options = made.parse_args(arguments)
    if not options.collective and not options.calibrate:
        made.error("say what to measure, all_reduce for one, or --calibrate")
    if options.device == "cpu" and not options.calibrate:
        made.error("--device cpu belongs to --calibrate")
    if options.calibrate:
        given = [spelt(made, name) for name, default in ROWS.items() if getattr(options, name) not in (None, default)]
        if given:
            made.error(
                f"{', '.join(given)}: not with --calibrate, which measures bf16 in all modes, over all transports"
            )
        if options.tier and options.device == "cpu":
            made.error("--tier: not with --device cpu, which measures gloo; leave one out")
    for name, default in ROWS.items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    options.tier = options.tier or "nvlink"
    options.begin = options.begin or size("4K" if options.calibrate else "1M")
    options.compressors = options.compressors or (["int8", "int4"] if options.calibrate else ["int8"])
    if options.begin > options.end:
        made.error(f"-b {options.begin} is above -e {options.end} (bytes): no size is left; write an -e of at least -b")
    if options.plot and (options.plot.suffix not in PICTURES or find_spec("matplotlib") is None):
        made.error(f"--plot {options.plot}: needs a name in {' or '.join(PICTURES)}, and matplotlib installed")
    return options


def spelt(made: argparse.ArgumentParser, name: str) -> str:
    """An option as its user writes it."""
    return next("/".join(a.option_strings) for a in made._actions if a.dest == name)


def refuse(options: argparse.Namespace) -> None:
    """Before any process starts. Raises ValueError for a collective, compressor or file that cannot be measured, read or written."""
    from ..bench.cases import DEFAULT, collective_for
    from ..pipeline import Collective
    from ..plan.calibration import table_path
    from ..torch.native import KINDS

    if options.calibrate:
        for name in options.collective:
            if name not in KINDS:
                raise ValueError(f"--calibrate {name}: measures {', '.join(KINDS)}; name some of them, or none for all")
    found: list[Collective] = []
    for name in options.collective or KINDS:
        try:
            found.append(collective_for(name))
            found[-1].program()
        except CompileError as e:
            raise ValueError(f"collective {name}: {told(e)}; write {', '.join(DEFAULT)}, or an algorithm") from None
        if found[-1].kind not in DEFAULT:
            raise ValueError(f"collective {name}: is a {found[-1].kind}, beside which no NCCL call is measured; write another")  # fmt: skip
    for text in options.compressors:
        for collective in found:
            for dtype in options.dtype:
                try:
                    names = {name: text for name in collective.program(dtype).codecs}
                    collective.program(dtype, names)
                except CompileError as e:
                    raise ValueError(f"--set {text}: {told(e)}; write a compressor such as int8 or int4(group=64)") from None  # fmt: skip
    places = {"--json": options.json, "--plot": options.plot}
    if options.calibrate and not options.json:
        places["COCCL_TABLE" if os.environ.get("COCCL_TABLE") else "COCCL_CACHE"] = table_path()
    for name, path in places.items():
        if path is not None and os.environ.get("RANK", "0") == "0" and not writable(path):
            raise ValueError(f"{name} {path}: cannot be written; name a file in a folder of yours")


def told(e: CompileError) -> str:
    """A CompileError on one line."""
    return " ".join(e.diagnostics[0].message.split())


def writable(path: Path) -> bool:
    """Whether a file of that name can be written; makes its folders, and leaves a file as it was."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        there = path.exists()
        path.open("ab").close()
        if not there:
            path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def main(argv: list[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parse(arguments)
    for name, value in TIERS[options.tier].items():
        if "RANK" in os.environ and os.environ.get(name) != value:
            print(f"coccl-bench: under torchrun set {name}={value} for --tier {options.tier}", file=sys.stderr)
            return 2
        os.environ[name] = value
    try:
        refuse(options)
    except ValueError as e:
        if os.environ.get("RANK", "0") == "0":
            print(f"coccl-bench: error: {e}", file=sys.stderr)
        return 2
    if "RANK" in os.environ:
        return (calibration if options.calibrate else worker)(options, arguments)
    import torch

    gpus = torch.cuda.device_count()
    count = options.ranks or (gpus if options.device == "cuda" else 2)
    # Ranks that are hosts of their own to NCCL may share a GPU.
    if options.device == "cuda" and (gpus < 1 or count < 2 or (gpus < count and options.tier != "socket")):
        hint = "; `--ranks 2 --tier socket` lets two ranks share one" if gpus else ""
        print(f"coccl-bench: needs at least {max(count, 2)} GPUs, this machine has {gpus}{hint}", file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "coccl_dsl.cli.bench", *arguments]
    return start_processes(command, count, sockets=options.device == "cuda" and options.tier == "socket")


def calibration(options: argparse.Namespace, arguments: list[str]) -> int:
    """One rank of `--calibrate`."""
    from dataclasses import replace
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from ..bench.calibrate import calibrate
    from ..plan.calibration import merged, read_table, table_path
    from ..torch.native import KINDS
    from .progress import status

    cuda = options.device == "cuda"
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()) if cuda else torch.device("cpu")
    )
    if cuda:
        torch.cuda.set_device(device)
    bound: dict[str, Any] = {"device_id": device} if cuda else {}
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=120), **bound)
    lead = dist.get_rank() == 0
    with status("calibrating", shown=lead) as tell:
        made = calibrate(device, options.collective or KINDS, options.compressors, sizes(options), tell)
    if lead:
        path = options.json or table_path()
        try:
            old = read_table(path) if path.exists() else None
        except ValueError as e:
            print(f"coccl-bench: the old table is replaced: {e}", file=sys.stderr)
            old = None
        made = merged(old, replace(made, about=provenance("coccl-bench " + " ".join(arguments))))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made.text(), encoding="utf-8")
        for place, curves in made.curves.items():
            print(f"{place}: {len(curves)} curves")
        print(f"written to {path}")
    dist.barrier()
    dist.destroy_process_group()
    return 0


def start_processes(command: list[str], count: int, sockets: bool = False) -> int:
    """Start one process a rank on this machine, end all when one fails; returns the exit code.

    sockets: each rank is a host of its own to NCCL, which then goes over sockets, and lets ranks share a GPU."""
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    processes = []
    for rank in range(count):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        if sockets:
            own |= {"NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
        processes.append(subprocess.Popen(command, env=os.environ | own))
    code = 0
    while processes:
        time.sleep(0.05)
        for p in list(processes):
            if p.poll() is None:
                continue
            processes.remove(p)
            if p.returncode:
                code = p.returncode
                for other in processes:
                    other.terminate()
    return code


def sizes(options: argparse.Namespace) -> list[int]:
    """In bytes, rising; of a calibration, whose curves go by elements, each another number of them."""
    item, found, at = ITEM if options.calibrate else 1, list[int](), float(options.begin)
    while at <= options.end * 1.0001:
        found.append(max(int(at) // item, 1) * item)
        at *= options.factor
    return sorted({*found})


def worker(options: argparse.Namespace, arguments: list[str]) -> int:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from ..bench.cases import collective_for
    from ..bench.rows import Row, run_row
    from ..bench.timing import link_rate, p2p_rate
    from ..runtime.transports.nccl import nccl_version

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.manual_seed(1234 + int(os.environ["RANK"]))
    dist.init_process_group("nccl", device_id=device, timeout=timedelta(seconds=120))
    lead = dist.get_rank() == 0
    link = link_rate(device) if options.tier == "nvlink" else 0.0
    p2p = p2p_rate(device)
    if lead:
        print(
            f"# {torch.cuda.get_device_name(device)} x {dist.get_world_size()}, torch {torch.__version__}, NCCL {nccl_version()}, tier {options.tier}",
            flush=True,
        )
        print(f"# link: {link:.0f} GB/s by stores, {p2p:.0f} GB/s by NCCL p2p, each way at once", flush=True)
        print(HEADER, flush=True)
    rows: list[Row] = []
    for name in options.collective:
        collective = collective_for(name)
        for dtype in options.dtype:
            for count in sizes(options):
                for compressor in options.compressors:
                    made = run_row(
                        collective,
                        compressor,
                        dtype,
                        count,
                        tuple(options.mode),
                        transport=options.transport,
                        depth=options.slices,
                        iterations=options.iterations,
                        repeats=options.repeats,
                        link=link,
                        baseline_f32=not options.no_f32,
                    )
                    rows += made
                    torch.cuda.empty_cache()
                    if lead:
                        for row in made:
                            print(line(row), flush=True)
    wrong = [r for r in rows if r.error]
    if lead and options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document(rows, options, arguments, link, p2p), indent=1))
    if lead and options.plot:
        from ..bench.plot import plot

        plot(rows, options.plot)
    dist.destroy_process_group()
    return 1 if wrong else 0


HEADER = (
    f"{'collective':<15}{'codec':<8}{'dtype':<6}{'size':>8} {'mode':<11}{'transport':<10}{'us':>9}{'+-':>7}{'nccl us':>9}{'ratio':>7}"
    f"{'f32':>7}{'algbw':>7}{'busbw':>7}{'ceil':>6}{'share':>6}{'floor':>7}{'rel err':>9}  same bits"
)


def line(r: Any) -> str:
    unit = f"{r.size >> 20}M" if r.size >= 1 << 20 else f"{r.size >> 10}K"
    if r.error:
        return (
            f"{r.collective:<15}{r.compressor:<8}{r.dtype:<6}{unit:>8} {r.mode:<11}{r.transport:<10} WRONG: {r.error}"
        )
    f32 = f"{r.ratio_f32:.2f}" if r.ratio_f32 else "-"
    floor = f"{r.floor_us:.0f}" if r.floor_us else "-"
    same = "yes" if r.same_as_simulate and r.ranks_equal is not False else "no"
    return (
        f"{r.collective:<15}{r.compressor:<8}{r.dtype:<6}{unit:>8} {r.mode:<11}{r.transport + '/' + str(r.slices):<10}{r.us:>9.1f}{r.spread:>7.1f}{r.nccl_us:>9.1f}{r.ratio:>7.2f}"
        f"{f32:>7}{r.algbw:>7.1f}{r.busbw:>7.1f}{r.ceiling:>6.2f}{r.share:>6.2f}{floor:>7}{r.relative_error:>9.4f}  {same}"
    )


def provenance(command: str) -> dict[str, Any]:
    """What every result file begins with: command, commit (COCCL_COMMIT where the code is no checkout), date, machine and versions."""
    import torch
    import triton

    from ..runtime.transports.nccl import nccl_version

    gpus = torch.cuda.device_count()
    return {
        "command": command,
        "commit": os.environ.get("COCCL_COMMIT") or _git("rev-parse", "HEAD"),
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "machine": {
            "gpu": torch.cuda.get_device_name(0) if gpus else "none",
            "gpus": gpus,
            "host": platform.processor() or platform.machine(),
        },
        "versions": {
            "torch": torch.__version__,
            "triton": triton.__version__,
            "nccl": ".".join(map(str, nccl_version())) if gpus else "none",
            "python": platform.python_version(),
        },
    }


def document(
    rows: list[Any], options: argparse.Namespace, arguments: list[str], link: float, p2p: float
) -> dict[str, Any]:
    return {
        **provenance("coccl-bench " + " ".join(arguments)),
        "tier": options.tier,
        "link_gb_s": link,
        "nccl_p2p_gb_s": p2p,
        "rows": [r.json() for r in rows],
    }


def _git(*words: str) -> str:
    try:
        return subprocess.run(
            ["git", *words], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


if __name__ == "__main__":
    raise SystemExit(main())
