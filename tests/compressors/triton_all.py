"""Every shipped compressor by the Triton back end and by the reference, bit for bit; a program as tests/codegen/triton_cases.py is.

python tests/compressors/triton_all.py cuda 0 1          # device, which shard of how many, words that a case's name must have
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.codegen.triton_cases import IN, OPENED, OUT, Case, main, make
from tests.compressors.library import EVERY, SHIPPED

# A lone element, a short last group, whole tiles and a short one, a short second frame.
SOME, MORE = (1, 2085, 4096), (127, 5000, 33000)


def cases(full: bool = True) -> Iterator[Case]:
    """Compress and open every compressor for every dtype; without `full` the defaults alone, each with the dtypes it takes in turn."""
    for i, q in enumerate(EVERY if full else SHIPPED):
        for dtype in q.dtypes if full else (q.dtypes[i % len(q.dtypes)],):
            codec = make(q.text, dtype)
            both = any(s.scope == "both" for s in codec.states)
            for sizes in (SOME, MORE) if full else (SOME,):
                basis = codec.basis
                yield Case(dtype, (IN,), out=q.text, basis=basis, sinks=(OPENED,), sizes=sizes)
                yield Case(dtype, (IN,), opened=q.text, update=both, basis=basis, sinks=(OUT,), sizes=sizes)


def some() -> Iterator[Case]:
    return cases(full=False)


if __name__ == "__main__":
    words = sys.argv[4:]
    main(
        sys.argv[1],
        int(sys.argv[2]),
        int(sys.argv[3]),
        [w for w in words if w != "--some"],
        some if "--some" in words else cases,
    )
