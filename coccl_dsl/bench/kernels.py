"""A plain store kernel: what the link gives without compression."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store(here, there, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(there + at, tl.load(here + at))
