"""Inline assembly of generated kernels: conversions of several floats at once, by the hardware, mended where its rules are not ours."""

from __future__ import annotations


def odd_values(type: str, pairs: bool) -> str:
    """PTX that rounds eight floats to a 16-bit type: the hardware's conversion, and a seldom taken branch for NaN and what overflows.

    The hardware gives Inf for what overflows and another NaN than the canonical one. The test costs an instruction a value, or with `pairs`,
    where the largest of the results is tested, less.
    """
    largest, nan, convert, inf = {
        "bf16": ("0f7F7F0000", "0x7FC0", "cvt.rn.bf16x2.f32", "0x7F807F80"),
        "f16": ("0f477FE000", "0x7E00", "cvt.rn.f16x2.f32", "0x7C007C00"),
    }[type]
    text = [
        "{",
        ".reg .pred odd, inf, nan, even;",
        ".reg .f32 m, low, high;",
        ".reg .b16 l, h;",
        ".reg .b32 most0, most2;",
    ]
    text += [f"{convert} ${i}, ${5 + 2 * i}, ${4 + 2 * i};" for i in range(4)]
    if pairs:
        for a, b in ((0, 1), (2, 3)):
            text.append(f"max.NaN.xorsign.abs.{type}x2 most{a}, ${a}, ${b};")
        text.append(f"max.NaN.xorsign.abs.{type}x2 most0, most0, most2;")
        text += [f"abs.{type}x2 most0, most0;", f"mov.b32 most2, {inf};"]
        text += [f"setp.geu.{type}x2 odd|even, most0, most2;", "or.pred odd, odd, even;"]
    else:
        for i in range(8):
            text.append(f"abs.f32 m, ${4 + i};")
            text.append(f"setp.gtu.f32 odd, m, {largest};" if i == 0 else f"setp.gtu.or.f32 odd, m, {largest}, odd;")
    text.append("@!odd bra done;")
    for i in range(4):
        for name, arg in (("low", 4 + 2 * i), ("high", 5 + 2 * i)):
            text.append(f"abs.f32 m, ${arg};")
            text.append("setp.eq.f32 inf, m, 0f7F800000;")
            text.append(f"min.f32 {name}, m, {largest};")
            text.append(f"copysign.f32 {name}, ${arg}, {name};")
            text.append(f"selp.f32 {name}, ${arg}, {name}, inf;")
        text.append(f"{convert} ${i}, high, low;")
        text.append(f"mov.b32 {{l, h}}, ${i};")
        for half, arg in (("l", 4 + 2 * i), ("h", 5 + 2 * i)):
            text.append(f"setp.nan.f32 nan, ${arg}, ${arg};")
            text.append(f"@nan mov.b16 {half}, {nan};")
        text.append(f"mov.b32 ${i}, {{l, h}};")
    return "\n".join([*text, "done:", "}"])


def eight_bits(type: str) -> str:
    """PTX that rounds four floats to 8-bit ones, packed. The hardware saturates Inf too, which e5m2 has: a seldom taken branch puts it back."""
    text = ["{", ".reg .b16 low, high;", ".reg .pred odd, inf;", ".reg .f32 m;", ".reg .b32 c;"]
    text += [f"cvt.rn.satfinite.{type}x2.f32 low, $2, $1;", f"cvt.rn.satfinite.{type}x2.f32 high, $4, $3;"]
    text.append("mov.b32 $0, {low, high};")
    if type == "e5m2":
        for i in range(4):
            text.append(f"abs.f32 m, ${1 + i};")
            text.append(f"setp.eq{'.or' if i else ''}.f32 odd, m, 0f7F800000{', odd' if i else ''};")
        text.append("@!odd bra done;")
        for i in range(4):
            text += [f"abs.f32 m, ${1 + i};", "setp.eq.f32 inf, m, 0f7F800000;", f"mov.b32 c, ${1 + i};"]
            text += ["shr.u32 c, c, 24;", "and.b32 c, c, 0x80;", "or.b32 c, c, 0x7C;"]
            text.append(f"@inf bfi.b32 $0, c, $0, {8 * i}, 8;")
        text.append("done:")
    return "\n".join([*text, "}"])


def next_ends(type: str) -> str:
    """PTX that joins what is known of two sets of packed 16-bit floats: $0 the largest, $1 the next one, $2 the least, $3 the next one."""
    lines = ["{", ".reg .b32 a, b;"]
    for out, outer, inner in ((0, "max", "min"), (2, "min", "max")):
        lines.append(f"{outer}.NaN.{type}x2 ${out}, ${out + 4}, ${out + 8};")
        lines.append(f"{inner}.{type}x2 a, ${out + 4}, ${out + 8};")
        lines.append(f"{outer}.{type}x2 b, ${out + 5}, ${out + 9};")
        lines.append(f"{outer}.{type}x2 ${out + 1}, a, b;")
    return "\n".join([*lines, "}"])


def next_sizes(type: str) -> str:
    """PTX that joins the largest magnitude and the next one of two sets of packed 16-bit floats, $0 and $1."""
    lines = ["{", ".reg .b32 a, b;", f"max.NaN.{type}x2 $0, $2, $4;", f"min.{type}x2 a, $2, $4;"]
    return "\n".join([*lines, f"max.{type}x2 b, $3, $5;", f"max.{type}x2 $1, a, b;", "}"])


def first_half() -> str:
    """PTX that finds the first of up to 32 elements in a mask, not 0, with the even ones in the low half and the odd ones in the high half."""
    text = ["{", ".reg .b32 even, odd;"]
    text += ["brev.b32 even, $1;", "and.b32 odd, even, 0xFFFF;", "and.b32 even, even, 0xFFFF0000;"]
    # Reversed, the low half stands in the high one: its leading zeros are the element's place, those of the other less 16.
    text += ["clz.b32 even, even;", "clz.b32 odd, odd;", "shl.b32 even, even, 1;", "mad.lo.s32 odd, odd, 2, -31;"]
    text += ["min.s32 $0, even, odd;"]
    return "\n".join([*text, "}"])


def signs() -> str:
    """PTX that gathers the signs of eight floats at bits 3, 7, .. 31 of a word; its other bits are theirs too."""
    # The funnel takes in four bits at a time, from the last float on.
    text = ["shr.b32 $0, $8, 28;", *(f"shf.l.wrap.b32 $0, ${i}, $0, 4;" for i in range(7, 0, -1))]
    return "\n".join(text)


def clamped_codes(bits: int) -> str:
    """PTX that packs codes that stand in the low halves of words, and are clamped to what `bits` hold, two at a time."""
    half = 16 // bits
    text = ["{", ".reg .b32 two, high;", f"mov.b32 high, {((1 << bits) - 1) * 0x10001};"]
    for i in range(half):
        text += [f"prmt.b32 two, ${1 + i}, ${1 + half + i}, 0x5410;", "min.relu.s16x2 two, two, high;"]
        text.append(f"mad.lo.u32 $0, two, {1 << bits * i}, $0;" if i else "mov.b32 $0, two;")
    return "\n".join([*text, "}"])


def from_eight_bits(type: str) -> str:
    """PTX that widens four 8-bit floats, packed."""
    text = ["{", ".reg .b16 low, high, a, b, c, d;", ".reg .b32 two;", "mov.b32 {low, high}, $4;"]
    for half, first, second in (("low", "a", "b"), ("high", "c", "d")):
        text += [f"cvt.rn.f16x2.{type}x2 two, {half};", f"mov.b32 {{{first}, {second}}}, two;"]
    text += [f"cvt.f32.f16 ${i}, {name};" for i, name in enumerate("abcd")]
    return "\n".join([*text, "}"])
