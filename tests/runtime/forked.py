"""forked.py FOLDER WORLD SCRIPT ARGUMENT...: runs a script on WORLD ranks, forked from one process that has imported everything, as importing torch
takes longer than most tests. FOLDER/RANK holds what a rank printed, FOLDER/codes how each ended."""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import torch.distributed  # noqa: F401

import coccl_dsl.runtime.bind  # noqa: F401
from coccl_dsl.pipeline import load

load("two_shot").program()  # makes the parsers


def child(folder: str, rank: int, world: str, script: str, arguments: list[str]) -> None:
    out = os.open(f"{folder}/{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(RANK=str(rank), WORLD_SIZE=world)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    code = 1
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    folder, world, script, *arguments = sys.argv[1:]
    children = []
    for rank in range(int(world)):
        pid = os.fork()
        if pid == 0:
            child(folder, rank, world, script, arguments)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    Path(folder, "codes").write_text(json.dumps(codes))


if __name__ == "__main__":
    main()
