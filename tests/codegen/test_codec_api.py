"""Compressors on plain tensors."""

from __future__ import annotations

import pytest
import torch

from coccl_dsl.codegen.codec_api import codec
from coccl_dsl.diagnostics import CompileError

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def data(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", ["int8(group=64)", "int4", "int8_h32", "int4_h32", "bf16", "raw"])
def test_a_round_trip_keeps_shape_dtype_and_values_nearly(text, dtype):
    c = codec(text)
    for shape in [(3, 5, 7), (1,), (), (40_000,)]:
        x = data(*shape, dtype=dtype)
        w = c.compress(x)
        y = c.decompress(w)
        assert (y.shape, y.dtype, w.shape, w.dtype) == (x.shape, dtype, x.shape, dtype)
        assert (w.count, w.nbytes, w.data.dtype) == (x.numel(), w.data.numel(), torch.uint8)
        assert float((y.float() - x.float()).abs().max()) <= 0.2 * float(x.float().abs().max())
        assert torch.equal(y, c.roundtrip(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_raw_is_exact(dtype):
    x = data(1000, dtype=dtype)
    x[:4] = torch.tensor([torch.inf, -torch.inf, 0.0, -0.0])
    assert torch.equal(codec("raw").roundtrip(x), x)
    w = codec("raw").compress(x)
    assert torch.equal(w.data, x.view(torch.uint8))


def test_a_tensor_that_is_not_contiguous_is_taken_in_row_major_order():
    x = data(64, 48).t()[::2]
    assert not x.is_contiguous()
    c = codec("int4")
    assert torch.equal(c.compress(x).data, c.compress(x.contiguous()).data)
    assert torch.equal(c.roundtrip(x), c.roundtrip(x.contiguous()))


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
@pytest.mark.parametrize("text", ["int4", "int8_h32"])
def test_an_empty_tensor(text, shape):
    w = codec(text).compress(torch.zeros(shape))
    assert w.nbytes == w.count == 0
    assert codec(text).decompress(w).shape == shape


def test_gradients_do_not_pass():
    x = data(10).requires_grad_()
    assert not codec("int4").roundtrip(x).requires_grad


def test_bits_per_value():
    assert codec("int4").bits_per_value == 4.125
    assert codec("int8(group=64)").bits_per_value == 8.25
    assert codec("raw", torch.bfloat16).bits_per_value == 16
    with pytest.raises(ValueError, match="depend on the tensor's dtype"):
        _ = codec("raw").bits_per_value


def test_stochastic_rounding_advances_from_call_to_call_and_repeats_from_its_seed():
    x = data(5000)
    a, b, other = (codec("int4(round=stochastic)", seed=s) for s in (1, 1, 2))
    first, second = a.compress(x).data, a.compress(x).data
    assert not torch.equal(first, second)
    assert torch.equal(b.compress(x).data, first) and torch.equal(b.compress(x).data, second)
    assert not torch.equal(other.compress(x).data, first)
    assert (a.calls, other.calls) == (2, 1)


@pytest.mark.parametrize("text", ["error_feedback(int4)", "weight_delta4"])
def test_a_compressor_with_state_wants_a_collective(text):
    with pytest.raises(ValueError, match=rf"{text[:11]}.*keeps state.*bind it in a collective"):
        codec(text)


def test_other_dtypes_are_refused_by_name():
    with pytest.raises(TypeError, match="not float64"):
        codec("int4").compress(torch.zeros(3, dtype=torch.float64))
    with pytest.raises(TypeError, match="not int32"):
        codec("int4", torch.int32)
    with pytest.raises(TypeError, match="made for bf16 tensors, not f32"):
        codec("int4", torch.bfloat16).compress(torch.zeros(3))


def test_a_compressor_for_some_dtypes_refuses_the_others(tmp_path, monkeypatch):
    (tmp_path / "halves.comp").write_text(
        "compressor halves(group: int = 8) {\n wire { v : input[group] }\n nonfinite pass\n only bf16, f16\n"
        " compress(x) { v = x }\n decompress { yield v }\n}\n"
    )
    monkeypatch.setenv("COCCL_PATH", str(tmp_path))
    c = codec("halves")
    assert c.bits_per_value == 16
    assert torch.equal(c.roundtrip(data(9, dtype=torch.float16)), data(9, dtype=torch.float16))
    with pytest.raises(TypeError, match="takes bf16, f16 tensors, not f32"):
        c.compress(torch.zeros(3))
    with pytest.raises(CompileError, match="E501"):
        codec("halves", torch.float32)


def test_a_wire_is_opened_by_its_own_compressor_only():
    w = codec("int4").compress(data(10))
    with pytest.raises(ValueError, match="cannot open"):
        codec("int4(group=64)").decompress(w)
    assert torch.equal(codec("int4(group=128)").decompress(w), codec("int4").roundtrip(data(10)))


def test_a_mistake_in_the_text_is_a_diagnostic():
    with pytest.raises(CompileError, match="E215"):
        codec("int5")
    with pytest.raises(CompileError, match="E401"):
        codec("int4(group=100)")
