"""Names of operations in generated Triton kernels: operators, functions, types, numbers, and what a value of each is called."""

from __future__ import annotations

import math

INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "and_bits": "&",
    "or_bits": "|",
    "xor_bits": "^",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "both": "&",
    "either": "|",
}
CALLS = {
    "div": "tl.div_rn",
    "idiv": "lib.floor_div",
    "imod": "lib.floor_mod",
    "shl": "lib.shift_left",
    "shr": "lib.shift_right",
    "abs": "tl.abs",
    "floor": "tl.floor",
    "sqrt": "tl.sqrt_rn",
    "round": "lib.round_even",
    "select": "tl.where",
    "to_i32": "lib.to_int",
    "bits": "lib.as_int",
    "from_bits": "lib.as_float",
    "exponent": "lib.exponent",
    "ldexp": "lib.ldexp",
}
NAMES = {
    "add": "total",
    "sub": "difference",
    "mul": "product",
    "div": "quotient",
    "rcp": "inverse",
    "abs": "size",
    "rmax": "largest",
    "rmin": "least",
    "rsum": "sum",
    "rany": "some",
    "rall": "every",
    "fmax": "frame_largest",
    "fmin": "frame_least",
    "fsum": "frame_sum",
    "select": "chosen",
    "round_to": "rounded",
    "isfinite": "finite",
    "invert": "other",
    "eq": "equal",
    "ne": "differs",
    "lt": "below",
    "le": "at_most",
    "gt": "above",
    "ge": "at_least",
    "to_f32": "number",
    "to_i32": "whole",
    "quantize": "code",
    "min2": "smaller",
    "max2": "larger",
    "neg": "negative",
    "both": "both",
    "either": "either",
    "first": "indices",
    "floor": "whole",
    "round": "whole",
}
# Names that a kernel uses itself.
TAKEN = (
    "lib",
    "groups",
    "memory",
    "pairs",
    "words",
    "tl",
    "triton",
    "row",
    "first",
    "length",
    "frame",
    "group",
    "left",
    "live",
    "place",
    "total",
)
# Float types that arrays are rounded to by their bits.
SHORT = ("e4m3", "e5m2", "e2m1")
DTYPES = {"f32": "float32", "i32": "int32", "bool": "int1"}
MINUS_INF = 'float("-inf")'
PLUS_INF = 'float("inf")'


def width(length: int) -> int:
    """Columns of an array of `length` values: Triton's shapes are powers of two."""
    return 1 << (length - 1).bit_length()


def literal(v: float | int | bool) -> str:
    if isinstance(v, float) and not math.isfinite(v):
        return f'float("{v}")'
    if isinstance(v, int) and not isinstance(v, bool):
        return str((v + (1 << 31)) % (1 << 32) - (1 << 31))
    return repr(v)
