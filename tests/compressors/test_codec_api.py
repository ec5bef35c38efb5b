"""`coccl_dsl.codec` for every compressor: a wire of the stated size, the same values as a collective's receiver gets, states refused."""

from __future__ import annotations

import pytest
import torch

import coccl_dsl
from coccl_dsl.codegen.casts import to_dtype
from coccl_dsl.codegen.codec_api import Wire
from coccl_dsl.wire.layout import wire_bytes
from tests.compressors.data import DTYPES, sample
from tests.compressors.library import EVERY, Shipped
from tests.compressors.test_promises import round_trip
from tests.lang.compressor_texts import codec


@pytest.mark.parametrize("q", EVERY, ids=[q.text for q in EVERY])
def test_every_compressor(q: Shipped) -> None:
    if codec(q.text).stateful:
        with pytest.raises(ValueError, match=rf"{q.name}.*keeps state"):
            coccl_dsl.codec(q.text)
        return
    for dtype in q.dtypes:
        c, api = codec(q.text, dtype), coccl_dsl.codec(q.text, DTYPES[dtype])
        assert api.bits_per_value == (32 if q.name == "raw" and dtype == "f32" else q.bits)
        for shape in ((1,), (3, 411), (0,)):
            x = sample("random", int(torch.Size(shape).numel()), dtype).to(DTYPES[dtype]).reshape(shape)
            w = api.compress(x)
            y = api.decompress(w)
            assert (y.shape, y.dtype, w.nbytes) == (x.shape, x.dtype, wire_bytes(c, x.numel()))
            if x.numel() and not c.stochastic:
                assert torch.equal(y.reshape(-1), to_dtype(round_trip(c, x.reshape(-1).float()), dtype))


def test_a_wire_that_is_too_short_is_refused() -> None:
    api = coccl_dsl.codec("int4")
    w = api.compress(torch.ones(1000))
    with pytest.raises(ValueError, match="take 528 bytes"):
        api.decompress(Wire(w.data[:-1], w.count, w.shape, w.dtype, w.codec))


def test_a_wire_may_lie_anywhere() -> None:
    api, x = coccl_dsl.codec("nvfp4"), sample("random", 5000)
    w = api.compress(x)
    moved = torch.cat([torch.zeros(3, dtype=torch.uint8), w.data])[3:]
    other = Wire(moved, w.count, w.shape, w.dtype, w.codec)
    assert torch.equal(api.decompress(other), api.decompress(w))
