"""Every shipped algorithm on real processes and real gradients: the bits of `simulate`; uncompressed, torch's own results.

A core runs always. Everything, with its table:

    pytest -m full tests/algorithms -k processes -rP
"""

from __future__ import annotations

import json

import pytest
from worlds import spawn

SCRIPT = "../algorithms/gloo_processes.py"


def cases(out: list[str]) -> int:
    return json.loads(out[0].strip().splitlines()[-1])["cases"]


# Compressors and dtypes take turns over the worlds, so that the core has each of them.
@pytest.mark.parametrize(
    ("world", "compressors", "dtype"), [(2, "int8", "f16"), (3, "raw", "f32"), (4, "int4,raw", "bf16")]
)
def test_core_of_processes(world, compressors, dtype):
    assert cases(spawn(SCRIPT, world, "all", compressors, dtype, "5003")) >= 20


@pytest.mark.full
@pytest.mark.parametrize("world", [2, 3, 4, 6, 8])
def test_all_on_processes(world):
    out = spawn(SCRIPT, world, "all", "raw,int8,int4", "f32,bf16,f16", "40003", timeout=1800)
    print(out[0])
    assert cases(out) >= 189
