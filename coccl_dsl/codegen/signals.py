"""The kernels of the symm transport that move no data: signal peers, wait for peers. Triton, one program a row, one launch an exchange.

Each wait polls a counter in this rank's own memory that only grows, so replays of a graph work without being reset. It gives up on an abort
or at the deadline, writes which step and peer it was, and returns: a missing peer can neither hang the device nor kill the context.

A row is: address of a peer's counter to raise or 0; address of the own counter to wait for or 0; address of the number of waits so far
(int32); the peer waited for; the step. One row, the common case, is passed as arguments and not as a table: that saves a round trip to memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROW = 5
# int32 words in pinned memory: [0] 0 or 1 + step, [1] peer, [2] the op's number, [3] waits so far
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
def _await(flag, target, status, deadline_ns):
    """Poll a counter until it is at `target`, the op has failed, or the deadline has passed. Returns what was seen last."""
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
    return seen


@triton.jit
def _exchange(signal, wait, passed_address, peer, step, status, number, deadline_ns, LAG: tl.constexpr):
    passed = passed_address.to(tl.pointer_type(tl.int32))
    # Loaded before the signal, whose release waits for the stores before it: the two then overlap.
    target = tl.load(passed) + 1 - LAG
    if signal != 0:
        tl.atomic_add(signal.to(tl.pointer_type(tl.int32)), 1, sem="release", scope="sys")
    if wait != 0:
        seen = _await(wait.to(tl.pointer_type(tl.int32)), target, status, deadline_ns)
        tl.store(passed, target + LAG)
        if seen - target < 0:
            if tl.atomic_cas(status, 0, (step + 1).to(tl.int32), sem="relaxed", scope="sys") == 0:
                tl.store(status + 1, peer.to(tl.int32))
                tl.store(status + 2, number)
                tl.store(status + 3, target + LAG)


@triton.jit
def exchange_rows(table, status, number, deadline_ns, LAG: tl.constexpr):
    """grid (rows,), one warp. LAG: how many waits behind the number of calls to wait for: 0 for data, 1 for credits (the first call of an
    op finds its memory unused)."""
    row = table + tl.program_id(0) * 5
    signal, wait, passed = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    peer, step = tl.load(row + 3), tl.load(row + 4)
    _exchange(signal, wait, passed, peer, step, status, number, deadline_ns, LAG)


@triton.jit(do_not_specialize=["signal", "wait", "passed", "peer", "step"])
def exchange_one(signal, wait, passed, peer, step, status, number, deadline_ns, LAG: tl.constexpr):
    """The same for one row, given as arguments. grid (1,), one warp."""
    _exchange(
        signal.to(tl.int64),
        wait.to(tl.int64),
        passed.to(tl.int64),
        peer.to(tl.int64),
        step.to(tl.int64),
        status,
        number,
        deadline_ns,
        LAG,
    )


@triton.jit
def _fail(status, value):
    """Write the first two status words, if nobody has. Every thread tries: an atomic of Triton's would have one try, and the others wait for
    it at a barrier, which warps that saw their signal in time do not come to."""
    return tl.inline_asm_elementwise(
        "atom.global.sys.relaxed.cas.b64 $0, [$1], 0, $2;",
        "=l,l,l",
        [status, value],
        dtype=tl.int64,
        is_pure=False,
        pack=1,
    )


@triton.jit
def meet(rows, signals, waits, level, program, turn, status, number, deadline_ms, PEERS: tl.constexpr):
    """An exchange inside a kernel: what program number `program` has stored so far is there for the same program of the peers, and what those
    have stored is there for it.

    rows     int64[.., 3]: address of a peer's counter for program 0, of the own counter for program 0, the peer waited for
    signals  how many rows have a counter to raise; waits: how many have one to wait for
    turn     calls so far. PEERS: at least as many as there are rows, a power of two

    The barriers are for the kernel's threads: Triton puts none between stores and a release, or between an acquire and loads.
    """
    tl.debug_barrier()
    i = tl.arange(0, PEERS)
    counter = tl.load(rows + 3 * i, mask=i < signals, other=0) + 4 * program
    tl.atomic_add(counter.to(tl.pointer_type(tl.int32)), 1, mask=i < signals, sem="release", scope="sys")
    k = tl.full([], 0, tl.int32)
    while k < waits:
        own = tl.load(rows + 3 * k + 1) + 4 * program
        deadline_ns = deadline_ms.to(tl.int64) * 1000000
        seen = _await(own.to(tl.pointer_type(tl.int32)), turn + 1, status, deadline_ns)
        if seen - turn < 1:
            peer = tl.load(rows + 3 * k + 2)
            _fail(status.to(tl.pointer_type(tl.int64)), (peer << 32) | (level + 1))
            tl.store(status + 2, number)
            tl.store(status + 3, turn)
        k += 1
    tl.debug_barrier()


@triton.jit
def sleep(nanoseconds):
    """Keep one program busy for a while: for race tests."""
    end = _now() + nanoseconds
    now = _now()
    while now < end:
        now = _now()
