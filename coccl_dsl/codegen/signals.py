"""The kernels of the symm transport that move no data: signal peers, wait for peers. Triton, one program a peer, one launch an exchange.

Each wait polls a counter in this rank's own memory that only grows, so replays of a graph work without being reset. It gives up on an abort
or at the deadline, writes which step and peer it was, and returns: a missing peer can neither hang the device nor kill the context.

Row of the table (int64): address of the peer's counter to raise or 0; address of the own counter to wait for or 0; address of the number of
waits so far (int32); peer; step.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROW = 5
# status words: [0] 0 or 1 + step, [1] peer, [2] the op's number, [3] waits so far
STATUS = 4


@triton.jit
def _now():
    return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def _acquire(pointer):
    return tl.inline_asm_elementwise(
        "ld.global.acquire.sys.b32 $0, [$1];", "=r,l", [pointer], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _volatile(pointer):
    return tl.inline_asm_elementwise(
        "ld.volatile.global.b32 $0, [$1];", "=r,l", [pointer], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def exchange(table, status, number, deadline_ns, LAG: tl.constexpr):
    """grid (peers,), one warp. LAG: how many waits behind the number of calls to wait for: 0 for data, 1 for credits (the first call of an
    op finds its memory unused)."""
    row = table + tl.program_id(0) * 5
    signal = tl.load(row)
    wait = tl.load(row + 1)
    # Loaded before the signal, whose release waits for the stores before it: the two then overlap.
    passed = tl.load(row + 2).to(tl.pointer_type(tl.int32))
    target = tl.load(passed) + 1 - LAG
    if signal != 0:
        tl.atomic_add(signal.to(tl.pointer_type(tl.int32)), 1, sem="release", scope="sys")
    if wait != 0:
        flag = wait.to(tl.pointer_type(tl.int32))
        end = _now() + deadline_ns
        late = False
        spins = 0
        seen = _acquire(flag)
        while (seen - target < 0) & (not late):
            # The status word lies in host memory: reading it at every turn would slow the poll.
            if spins % 256 == 255:
                late = (_volatile(status) != 0) | (_now() > end)
            spins += 1
            seen = _acquire(flag)
        tl.store(passed, target + LAG)
        if seen - target < 0:
            if tl.atomic_cas(status, 0, (tl.load(row + 4) + 1).to(tl.int32), sem="relaxed", scope="sys") == 0:
                tl.store(status + 1, tl.load(row + 3).to(tl.int32))
                tl.store(status + 2, number)
                tl.store(status + 3, target + LAG)


@triton.jit
def sleep(nanoseconds):
    """Keep one program busy for a while: for race tests."""
    end = _now() + nanoseconds
    now = _now()
    while now < end:
        now = _now()
