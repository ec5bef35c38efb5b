"""Compressors on a GPU: generated kernels equal to the reference, and the codec API on CUDA tensors equal to that on CPU ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import coccl_dsl
from tests.compressors.data import DTYPES, KINDS, sample
from tests.compressors.library import EVERY, Shipped
from tests.lang.compressor_texts import codec as compiled

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PROCESSES = min(14, os.cpu_count() or 1)
STATELESS = [q for q in EVERY if not compiled(q.text).stateful]


def test_every_compressor_and_dtype_equals_the_reference() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-W", "ignore", str(root / "tests" / "compressors" / "triton_all.py"), "cuda"]
    started = [
        subprocess.Popen(
            [*command, str(i), str(PROCESSES)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])},
        )
        for i in range(PROCESSES)
    ]
    answers = [json.loads(line) for p in started for line in p.communicate(timeout=1800)[0].splitlines()]
    assert all(p.returncode == 0 for p in started) and len(answers) > 200
    assert not {a["case"]: a["problem"] for a in answers if a["problem"]}


@pytest.mark.parametrize("q", STATELESS, ids=[q.text for q in STATELESS])
def test_the_codec_api_gives_the_same_bytes(q: Shipped) -> None:
    for dtype in q.dtypes:
        here, there = (coccl_dsl.codec(q.text, seed=3) for _ in range(2))
        x = torch.cat([sample(k, 1111, dtype) for k in KINDS]).to(DTYPES[dtype])[1:]
        w, v = here.compress(x), there.compress(x.cuda())
        assert v.data.is_cuda and torch.equal(w.data, v.data.cpu())
        y, z = here.decompress(w), there.decompress(v)
        assert z.is_cuda and torch.equal(y.view(torch.uint8), z.cpu().view(torch.uint8))
