"""`%coll_bench`: coccl-bench on this machine's GPUs; without two, the comparison that needs none."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..cli.bench import parse, start_processes
from ..pipeline import Collective


def benchmark(arguments: list[str], made: type[argparse.ArgumentParser], names: dict[str, Any]) -> Any:
    """A `Results` where there are GPUs, else a `Comparison`. names: the notebook's variables, among them collectives."""
    import torch

    options = parse(arguments, made)
    if options.calibrate:
        raise ValueError("--calibrate belongs on a command line: coccl-bench --calibrate")
    gpus = torch.cuda.device_count()
    if gpus < 2:
        print(
            f"{gpus} GPU{'s' * (gpus != 1)} here: nothing is timed. Bytes and errors are exact, times are the model's."
        )
        return without_gpus(options, names)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "coccl_dsl.cli.bench", *arguments, "--json", str(file)]
        code = start_processes(command, options.ranks or gpus)
        if not file.is_file():
            raise RuntimeError(f"coccl-bench ended with {code}; what it said stands above")
        from .measured import results

        return results(file)


def without_gpus(options: argparse.Namespace, names: dict[str, Any]) -> Any:
    from .comparison import compare

    return compare([find(n, names) for n in options.collective], options.compressors, ranks=options.ranks or 4)


def find(name: str, names: dict[str, Any]) -> Collective:
    """A collective of the notebook, a kind's default algorithm, a name of the library or a file."""
    from ..bench.cases import collective_for

    own = names.get(name)
    return own if isinstance(own, Collective) else collective_for(name)
