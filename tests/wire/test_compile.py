"""Compressor texts become codecs: layouts, parameters, nesting, states, claims, folding."""

from __future__ import annotations

import pytest

from coccl_dsl.diagnostics import CompileError
from coccl_dsl.lang.files import library
from coccl_dsl.wire.codec import DTYPES, FRAME, Codec, Node, walk
from coccl_dsl.wire.layout import bits_per_value, frame_bytes, frame_count, frame_runs, wire_bytes
from tests.lang.compressor_texts import codec

TEXT = """compressor t(group: int = 64, k: int = 4, f: float = 0.5, round: rounding = nearest) {{
  {parts}
  wire {{ {fields} }}
  nonfinite {nonfinite}
  compress(x) {{ {compress} }}
  decompress {{ yield {result} }}
}}"""


def made(
    fields: str = "v : f32[group]",
    compress: str = "v = x",
    result: str = "v",
    parts: str = "",
    nonfinite: str = "pass",
    dtype: str = "bf16",
) -> Codec:
    return codec(TEXT.format(fields=fields, compress=compress, result=result, parts=parts, nonfinite=nonfinite), dtype)


def codes(**parts: str) -> tuple[str, ...]:
    with pytest.raises(CompileError) as e:
        made(**parts)
    return e.value.codes


def ops(*roots: Node) -> list[str]:
    return [n.op for n in walk(list(roots))]


# ---- layouts


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("int4(group=128)", 4.125),
        ("int4(group=32)", 4.5),
        ("int4(group=32768)", 4 + 128 / 32768),
        ("int4(group=128, scale_type=f32)", 4.25),
        ("int8(group=128)", 8.125),
        ("int8(group=128, scale_type=f16)", 8.125),
        ("bf16", 16),
        ("raw", 16),
        ("error_feedback(int4(group=512))", 4.03125),
        ("weight_delta4(group=2048)", 4 + 16 / 2048 + 128 / 32768),
    ],
)
def test_bits_per_value(text: str, bits: float):
    assert bits_per_value(codec(text)) == bits


def test_raw_takes_the_width_of_the_tensor():
    assert [bits_per_value(codec("raw", d)) for d in DTYPES] == [32, 16, 16]


def test_runs_of_a_frame_are_planar_and_aligned():
    runs, size = frame_runs(codec("int4(group=128)"), FRAME)
    assert [(r.field, r.offset, r.bytes, r.values) for r in runs] == [
        ("code", 0, 16384, 32768),
        ("scale", 16384, 512, 256),
    ]
    assert size == 16896


def test_a_short_frame_holds_whole_groups():
    runs, size = frame_runs(codec("int4(group=128)"), 129)
    assert [(r.field, r.offset, r.bytes) for r in runs] == [("code", 0, 128), ("scale", 128, 4)]
    assert size == 144
    assert frame_runs(codec("int4(group=128)"), 128)[1] == 80


def test_array_fields_come_before_group_fields_before_frame_fields_before_the_version():
    parts = "state base : bf16 both"
    text = TEXT.format(
        parts=parts,
        fields="total : f32 frame  scale : bf16  code : s4[group]  low : u8[group div 4]",
        nonfinite="scale",
        compress="total = max(abs(x)) scale = max(x) code = quantize(x, -7, 7) low = iota(group div 4)",
        result="code * scale + base",
    ).replace("decompress", "update both { base = decompressed } decompress", 1)
    runs, _ = frame_runs(codec(text), FRAME)
    assert [r.field for r in runs] == ["code", "low", "scale", "total", "version"]
    assert all(r.offset % 16 == 0 for r in runs)
    assert [r.values for r in runs[-2:]] == [1, 1]


@pytest.mark.parametrize("count", [0, 1, 7, 127, 128, 129, 32767, 32768, 32769, 65536, 100_001])
@pytest.mark.parametrize("text", ["int4(group=128)", "int8(group=32)", "raw", "int4_h32(group=128)", "weight_delta4"])
def test_wire_bytes_is_the_sum_of_its_frames(text: str, count: int):
    c = codec(text)
    live = count if c.basis == 0 else -(-count // c.basis) * c.basis
    frames = [min(FRAME, live - i) for i in range(0, live, FRAME)]
    assert wire_bytes(c, count) == sum(frame_bytes(c, n) for n in frames)
    assert len(frames) == frame_count(count)
    assert wire_bytes(c, count) % 16 == 0


def test_a_basis_pads_to_whole_blocks():
    c = codec("int4_h32(group=128)")
    assert c.basis == 32
    assert wire_bytes(c, 1) == wire_bytes(c, 32) == frame_bytes(c, 32)


# ---- parameters


def test_parameters_by_name_place_and_default():
    assert codec("int4").name == codec("int4(group=128)").name == codec("int4(128)").name
    assert codec("int4(64, stochastic)").name == "int4(group=64, round=stochastic, scale_type=bf16)"
    assert codec("int4").group == 128 and codec("int4(64)").group == 64


def test_parameters_change_the_graph():
    assert not codec("int4").stochastic
    assert codec("int4(round=stochastic)").stochastic
    assert codec("int4(scale_type=f16)").fields[1].type == "f16"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("int4(group=3)", "E401"),
        ("int4(group=0)", "E401"),
        ("int4(group=-8)", "E401"),
        ("int4(group=65536)", "E401"),
        ("int4(group=1)", "E408"),
        ("int4(group=1.5)", "E216"),
        ("int4(group=99999999999)", "E216"),
        ("int4(round=up)", "E216"),
        ("int4(scale_type=f64)", "E216"),
        ("int4(scale_type=s4)", "E407"),
        ("int4(1, 2, 3, 4)", "E203"),
        ("int4(group=8, group=8)", "E203"),
        ("int4(grp=8)", "E203"),
        ("error_feedback", "E203"),
        ("error_feedback(8)", "E216"),
        ("error_feedback(int3)", "E215"),
        ("int4_h32(group=16)", "E216"),
    ],
)
def test_bad_bindings(text: str, code: str):
    with pytest.raises(CompileError) as e:
        codec(text)
    assert e.value.codes == (code,)


# ---- nesting and states


def test_a_wrapped_compressor_is_its_frame_in_place():
    outer, inner = codec("error_feedback(int4(group=512))"), codec("int4(group=512)")
    assert [f.name for f in outer.fields] == ["inner.code", "inner.scale"]
    assert [(f.type, f.per, f.length) for f in outer.fields] == [(f.type, f.per, f.length) for f in inner.fields]
    assert (outer.group, outer.nonfinite, outer.basis) == (512, "field", 0)
    assert set(outer.compress) == {"inner.code", "inner.scale"}
    assert len(outer.claims) == len(inner.claims) == 1


def test_a_wrapped_basis_is_the_wrappers():
    assert codec("error_feedback(int4_h32(group=64))").basis == 32


def test_wrapping_twice():
    c = codec("error_feedback(error_feedback(int8(group=64)))")
    assert [s.name for s in c.states] == ["error", "inner.error"]
    assert [f.name for f in c.fields] == ["inner.inner.code", "inner.inner.scale"]
    assert set(c.sender_updates) == {"error", "inner.error"} and not c.receiver_updates


def test_sender_state():
    c = codec("error_feedback(int4)")
    assert [(s.name, s.dtype, s.scope) for s in c.states] == [("error", "f32", "sender")]
    assert c.stateful and not c.versioned and c.first is None
    assert "state" in ops(*c.compress.values()) and "state" not in ops(c.decompress)


def test_both_state_is_updated_alike_on_both_sides():
    c = codec("weight_delta4")
    assert set(c.sender_updates) == set(c.receiver_updates) == {"base"}
    assert c.versioned
    assert "x" not in ops(c.receiver_updates["base"], c.decompress)
    assert set(ops(c.receiver_updates["base"])) >= {"rall", "isfinite"}, "a group that is not finite keeps its state"


def test_first_raw():
    first = codec("weight_delta4").first
    assert first is not None
    assert [(f.name, f.type) for f in first.fields] == [("raw", "bf16")]
    assert first.versioned and set(first.sender_updates) == set(first.receiver_updates) == {"base"}
    assert ops(first.receiver_updates["base"]).count("field") == 1


# ---- exactness, policies, claims


def test_raw_is_the_cast_alone():
    for dtype in DTYPES:
        c = codec("raw", dtype)
        assert c.cast and c.exact_for == ("f32", "bf16", "f16") and c.nonfinite == "pass"
    assert codec("bf16", "bf16").cast, "the same bits as raw"
    assert not codec("bf16", "f32").cast
    assert not codec("int8").cast and codec("int8").exact_for == ()


def test_only():
    parts = "only bf16"
    assert made(parts=parts, dtype="bf16").only == ("bf16",)
    with pytest.raises(CompileError) as e:
        made(parts=parts, dtype="f32")
    assert e.value.codes == ("E501",)


@pytest.mark.parametrize("name", library("compressors"))
def test_library_compressors_compile_for_some_dtype(name: str):
    text = name
    done = []
    for dtype in DTYPES:
        try:
            done.append(codec(text, dtype))
        except CompileError as e:
            if "E203" in e.codes:  # wraps another, which has no default
                done.append(codec(f"{name}(int8)", dtype))
            else:
                assert e.codes == ("E501",)
    assert done
    assert all(c.claims or c.exact_for or c.nonfinite == "pass" or c.states for c in done)


def test_claims_follow_their_condition():
    nearest, stochastic = codec("int4"), codec("int4(round=stochastic)")
    assert [c.text for c in nearest.claims] == ["abs(x - decompressed) <= 0.5 * scale + tiny"]
    assert [c.text for c in stochastic.claims] == ["abs(x - decompressed) <= scale + tiny"]
    assert nearest.claims[0].test.kind == "bool" and nearest.claims[0].bound is not None


def test_nonfinite_code_opens_to_nan():
    c = made(
        "code : s8[group]  scale : bf16",
        "scale = 1.0 code = quantize(x, -127, 127)",
        "code * scale",
        nonfinite="code code = -128",
    )
    assert c.nonfinite == "code"
    assert c.decompress.op == "select" and c.decompress.args[0].op == "eq"


def test_nonfinite_of_a_shorter_field_poisons_the_group():
    c = made(
        "code : s8[group]  scale : e4m3[group div 16]",
        "scale = slice(x, 0, group div 16) code = quantize(x, -127, 127)",
        "code * at(scale, 0)",
        nonfinite="scale",
    )
    assert c.decompress.args[0].scope == "group"


def test_a_claim_may_depend_on_a_type():
    assert codec("int8").claims and codec("int8(scale_type=f32)").claims and not codec("int8(scale_type=f16)").claims


def test_down_rounds_a_minimum():
    c = made("low : bf16  v : f32[group]", "low = down(min(x)) v = x", "v + low")
    assert ("bf16", "down", True) in [n.attr for n in walk([c.compress["low"]]) if n.op == "round_to"]


@pytest.mark.parametrize("fn", ["up", "down"])
def test_directions_stand_at_the_top_of_an_assignment(fn: str):
    assert codes(compress=f"v = abs({fn}(x))") == ("E203",)
    assert codes(fields="v : s8[group]", compress=f"v = {fn}(x)", result="v * 1.0") == ("E203",)


def test_what_is_mixed_counts_whole():
    c = made(compress="v = hadamard(x, 16) * 2")
    assert c.compress["v"].whole and "live" not in ops(c.compress["v"]), "codes of missing elements are sent"
    assert next(n for n in walk([c.decompress]) if n.op == "field").whole
    c = made(compress="v = whole(x + 1) - 1")
    assert c.compress["v"].whole and ops(c.compress["v"]).count("whole") == 1
    assert not made(compress="v = abs(x) + max(hadamard(x, 2))").compress["v"].whole
    assert not made(compress="v = gather(hadamard(x, 2), iota(group))").compress["v"].whole


FLAGGED = "flag full {}when any(x > 1)"


def test_a_flag_names_its_code_where_nan_and_inf_pass():
    c = made("v : u8[group]  n : u8", "v = x n = 3", "v * 1.0", parts=FLAGGED.format("code n = 255 "))
    assert c.nonfinite == "pass" and set(c.flags) == {"full"}
    assert c.decompress.op == "select" and c.decompress.args[0].op == "eq"
    assert c.compress["n"].op == "select" and c.compress["n"].args[0] is c.flags["full"]


@pytest.mark.parametrize(
    ("told", "policy", "code"),
    [
        ("", "pass", "E406"),
        ("code n = 255 ", "s", "E406"),
        ("code m = 255 ", "pass", "E201"),
        ("code n = 256 ", "pass", "E216"),
        ("code s = 1 ", "pass", "E407"),
    ],
)
def test_bad_flags(told: str, policy: str, code: str):
    fields, compress = "v : u8[group]  n : u8  s : bf16", "v = x n = 3 s = 1.0"
    assert codes(fields=fields, compress=compress, result="v * s", parts=FLAGGED.format(told), nonfinite=policy) == (
        code,
    )


# ---- arithmetic on constants


def folded(expression: str) -> object:
    c = made(compress=f"v = {expression}")
    spread = next(n for n in walk([c.compress["v"]]) if n.op == "spread")
    assert spread.args[0].op == "const"
    return spread.args[0].value


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7.0),
        ("7 div 2", 3.0),
        ("-7 div 2", -4.0),
        ("-7 mod 2", 1.0),
        ("7 / 2", 3.5),
        ("k * group", 256.0),
        ("f + 0.1", 0.6000000238418579),
        ("0.1", 0.10000000149011612),
        ("1 << 31", -2147483648.0),
        ("1 << 40", 0.0),
        ("(0 - 1) >> 31", 1.0),
        ("6 & 3 | 8", 10.0),
        ("sqrt(2.0)", 1.4142135381698608),
        ("rcp(3.0)", 0.3333333432674408),
        ("floor(0 - 1.5)", -2.0),
        ("round(2.5)", 2.0),
        ("sign(0 - 3.0)", -1.0),
        ("select(round == nearest, 1.0, 2.0)", 1.0),
        ("select(k > 3 and not (k == 5), 1, 2)", 1.0),
        ("max(1, 2)", 2.0),
        ("1e30 * 1e30", float("inf")),
    ],
)
def test_folding(expression: str, value: float):
    assert folded(expression) == value


@pytest.mark.parametrize("expression", ["1 div 0", "1 mod 0", "1 / 0", "rcp(0.0)", "sqrt(0 - 1.0)", "x / 0"])
def test_arithmetic_without_a_result(expression: str):
    assert codes(compress=f"v = {expression}") == ("E311",)


def test_division_by_a_scalar_is_one_reciprocal():
    c = made("v : f32[group]  s : f32", "s = max(x) v = x / s", "v")
    assert ops(c.compress["v"]).count("rcp") == 1 and "div" not in ops(c.compress["v"])
    assert "div" in ops(made(compress="v = x / abs(x)").compress["v"])


def test_equal_expressions_are_one_node():
    c = made("a : f32[group]  b : f32[group]", "a = abs(x) * 2 b = abs(x) * 2", "a + b")
    assert c.compress["a"] is c.compress["b"]


def test_fields_are_read_back_as_stored():
    c = made(
        "s : bf16  code : s8[group]",
        "s = up(max(abs(x)) / 7) code = quantize(x / nonzero(s), -7, 7)",
        "code * s",
        nonfinite="s",
    )
    stored = [n.attr for n in walk([c.compress["code"]]) if n.op == "round_to"]
    assert ("bf16", "up", True) in stored, "the quotient uses the rounded scale"
    assert set(ops(c.decompress)) <= {"field", "to_f32", "mul", "ne", "const", "select"}


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("quantize(x, -7, 7, k)", "E203"),
        ("quantize(x, -7, 7, select(max(x) > 0, nearest, stochastic))", "E204"),
        ("quantize(x, 7, -7)", "E203"),
        ("quantize(max(x), 0, 7, stochastic)", "E408"),
        ("nearest", "E204"),
        ("abs(nearest)", "E204"),
        ("x + nearest", "E204"),
        ("top(x, 65)", "E203"),
        ("hadamard(x, 3)", "E203"),
        ("hadamard(x > 0, 2)", "E204"),
        ("gather(x, x)", "E204"),
        ("at(x, iota(4))", "E408"),
        ("put(x, 0, x)", "E408"),
        ("slice(x, 8, 8)", "E203"),
        ("concat(x, x > 0)", "E204"),
        ("concat(x, x)", "E408"),
        ("x & 1", "E204"),
        ("x mod 2", "E204"),
        ("4294967296 + x", "E106"),
        ("at(x)", "E203"),
        ("x(1)", "E201"),
        ("decompress(v)", "E206"),
    ],
)
def test_bad_expressions(expression: str, code: str):
    assert codes(compress=f"v = {expression}") == (code,)
