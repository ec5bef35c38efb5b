"""Processes of a test world, forked from one that has imported everything: importing torch takes longer than most tests."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

from coccl_dsl.pipeline import load

load("two_shot").program()  # makes the parsers


def fork_world(world: int, main: Callable[[], None], seconds: float = 200) -> None:
    """Run `main` on `world` ranks. A rank that fails ends the others, and this process."""
    children = {}
    for rank in range(world):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
            code = 1
            try:
                main()
                code = 0
            except BaseException:
                print(f"--- rank {rank}", flush=True)
                traceback.print_exc(file=sys.stdout)
            finally:
                sys.stdout.flush()
                os._exit(code)
        children[pid] = rank
    end, failed = time.monotonic() + seconds, False
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            del children[pid]
            failed = failed or status != 0
        if children and (failed or time.monotonic() > end):
            time.sleep(1)
            for other in children:
                os.kill(other, signal.SIGKILL)
            print(f"ranks {sorted(children.values())} were ended", flush=True)
            os._exit(1)
        time.sleep(0.01)
    if failed:
        os._exit(1)
