"""The shipped compressors as the tests of this folder run them: texts, dtypes, and what each says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from coccl_dsl.lang.files import library

ALL = ("f32", "bf16", "f16")
WRAPPED = ("int4", "topk", "sign1", "int8_h32")


@dataclass(frozen=True)
class Shipped:
    """text: a binding; bits a value for bf16 tensors, exact over whole frames; dtypes it takes; nonfinite: group, own or flag."""

    text: str
    bits: float
    dtypes: tuple[str, ...] = ALL
    nonfinite: str = "group"

    @property
    def name(self) -> str:
        return self.text.split("(")[0]


# One row a compressor with the defaults, then forms that differ in more than a number.
SHIPPED = (
    Shipped("raw", 16, nonfinite="own"),
    Shipped("bf16", 16, nonfinite="own"),
    Shipped("fp16", 16, nonfinite="own"),
    Shipped("int8", 8.125),
    Shipped("int4", 4.125),
    Shipped("int2", 2.125),
    Shipped("uint8", 8.25),
    Shipped("uint4", 5),
    Shipped("minmax_u8", 8.0078125),
    Shipped("signed8", 8.5),
    Shipped("signed6", 6.5),
    Shipped("signed4", 4.5),
    Shipped("fp8_e4m3", 8.125),
    Shipped("fp8_e5m2", 8.125),
    Shipped("mxfp8", 8.25),
    Shipped("mxfp4", 4.25),
    Shipped("nvfp4", 4.50390625),
    Shipped("int8_h32", 8.125),
    Shipped("int4_h32", 4.125),
    Shipped("weight_delta8", 8.01171875),
    Shipped("weight_delta4", 4.01171875),
    Shipped("tah_quant", 4.625),
    Shipped("taco_fp8", 8.25),
    Shipped("spike4", 6.5),
    Shipped("spike3", 5.5),
    Shipped("spike2", 4.5),
    Shipped("bfp8", 8.0625),
    Shipped("zfp8", 8),
    Shipped("topk", 0.375),
    Shipped("sign1", 1.0078125),
    Shipped("lossless_bf16", 12.390625, ("bf16",), "own"),
    Shipped("error_feedback(int4)", 4.125),
)
FORMS = (
    Shipped("int8(group=32, scale_type=f32)", 9),
    Shipped("int8(group=2048, round=stochastic)", 8.0078125),
    Shipped("int4(group=32, round=stochastic)", 4.5),
    Shipped("int2(group=2048, round=stochastic)", 2.0078125),
    Shipped("uint8(group=64, scale_type=f32)", 9),
    Shipped("uint4(group=128, round=stochastic)", 4.25),
    Shipped("signed8(scale_type=bf16)", 8.5),
    Shipped("fp8_e4m3(group=32, scale_type=f32)", 9),
    Shipped("mxfp8(element=e5m2)", 8.25),
    Shipped("int4_h32(group=32, round=stochastic)", 4.5),
    Shipped("tah_quant(group=128, code_type=u8)", 8.3125),
    Shipped("taco_fp8(group=32)", 9),
    Shipped("spike3(group=128)", 3.625),
    Shipped("topk(group=256, k=3)", 0.375),
    Shipped("error_feedback(topk)", 0.375),
    Shipped("error_feedback(sign1)", 1.0078125),
    Shipped("error_feedback(int8_h32)", 8.125),
)
EVERY = (*SHIPPED, *FORMS)

assert {s.name for s in SHIPPED} == set(library("compressors")), "every file of compressors/ has a row"
