"""The compressor IR: what a `.comp` file means, as small expression graphs that both back ends run bit for bit alike.

A `Codec` is a compressor with every parameter bound, for one tensor dtype. Its graphs are about one group; a back end evaluates them for many
groups at once: an *array* node is `[groups, length]`, a *group* node `[groups]` (one number a group), a *frame* node one number a frame, a
*const* node a Python number. `kind` is f32, i32 or bool. Nodes are unique by structure within a codec (built through `Graph`), so evaluating
with a memo table does no work twice.

The operations, with their exact arithmetic (float32, round to nearest even, no contraction; both back ends, design/language.md section 2):

| op | args -> result | meaning |
|---|---|---|
| const | -> const | attr (value,) |
| x | -> array | the group's values, 0.0 where not live |
| live | -> array bool | element exists (False in the padding of a short last group) |
| count | -> group f32 | number of live elements of the group |
| iota | -> array i32 | 0, 1, .. length-1 |
| uniform | -> array f32 | attr (stream,): Philox draw in [0, 1), see `codegen.philox` |
| field | -> array / group / frame | attr (name,), or (name, "whole") for a whole array: a wire field as the receiver reads it: f32 for float types, i32 for integer types |
| state | -> array f32 | attr (name,): as before the call |
| add sub mul | f32 or i32 | IEEE; i32 wraps |
| div | f32 | IEEE division (divisor an array) |
| rcp | f32 | IEEE 1/v |
| idiv imod shl shr and_bits or_bits xor_bits | i32 | floor division and its remainder; shr is logical |
| neg abs floor sqrt rsqrt sign | f32 (neg, abs also i32) | IEEE; rsqrt = rcp(sqrt(v)); sign is -1, 0 or 1; floor exact |
| round | f32 | to nearest even, exact for every magnitude (|v| >= 2^22 is returned as it is when integral) |
| min2 max2 | f32 or i32 | of two values; a NaN operand loses (fmin, fmax) |
| select | (bool, a, b) | a where the condition holds, else b |
| eq ne lt le gt ge | -> bool | ordered comparisons (ne is true for NaN) |
| both either invert | bool | and, or, not |
| isfinite | f32 -> bool | |
| to_f32, to_i32 | | exact conversion of integers; to_i32 truncates an f32 within i32 range |
| bits, from_bits | f32 <-> i32 | bitcast |
| exponent | f32 -> i32 | floor(log2(abs v)) for normal v; -127 for 0 and subnormals; 128 for Inf and NaN |
| ldexp | (f32, i32) -> f32 | v * 2^i, i clamped to -252 .. 252, as two multiplies by powers of two: first 2^(i>>1), then 2^(i-(i>>1)) |
| rmax rmin | array -> group | over live elements, NaN ignored; -inf / +inf when there is none |
| rsum | array -> group | over live elements (others 0), balanced tree: v[:n/2] + v[n/2:], repeatedly |
| rany rall | array bool -> group bool | over live elements |
| argmax | array f32 -> group i32 | lowest index of the largest live element, NaN ignored; 0 if none |
| at | (array, group i32) -> group | element at the index; attr () |
| put | (array, group i32, group) -> array | the array with one element replaced |
| fmax fmin fsum | array or group -> frame | over all live elements of the frame's groups; fsum: per group rsum, then the same tree over 32768/group groups, missing ones 0 |
| hadamard | array -> array | attr (b,): butterflies of stride 1, 2, .. b/2 within blocks of b (a+b, a-b), then one multiply by float32(1/sqrt(b)) |
| quantize | (f32 v, const lo, const hi[, f32 u]) -> i32 | v' = fmin(fmax(v, lo), hi); without u: nearest even; with u: floor(v') + (u < v' - floor(v')) |
| round_to | f32 -> f32 | attr (type, how): the value that a field of this type holds; how = nearest, up or down; see below |
| spread | any -> array | attr (length,): one value a group (or a constant) as an array |
| whole | array -> array | the same values, whole; see below |
| slice | array -> array | attr (start, stop) |
| concat | arrays -> array | side by side |
| plane | (i32 array) -> i32 array | attr (shift, bits): (v >> shift) & (2^bits - 1) |
| top | array f32 -> array bool | attr (k,): the k largest live elements, ties to the lowest index, NaN never |
| gather | (array, array i32) -> array | element at each index |
| scatter | (array i32, array) -> array | attr (length,): zeros with values at the indices; a later duplicate wins |
| first | array bool -> array i32 | attr (k,): indices of the first k true live elements in order, `length` where there are fewer |

An array is *whole* where every value of a short last group counts, as after `hadamard`, which mixes the padding's zeros into all of them:
reductions then run over the full length, and nothing is masked. Elementwise operations of whole arrays are whole.

`round_to`: to nearest even (away from zero for `up`, towards -inf for `down`), finite values saturate at the type's largest finite value, Inf and NaN stay (types
without Inf saturate it). Group and frame fields of f32 and bf16 flush |v| < 2^-126 to 0 (attr `flush` is the third entry), so that the
reciprocal of a scale that is not 0 is finite. A NaN is stored as the canonical quiet NaN of its type (bf16 0x7fc0, f16 0x7e00, f32 0x7fc00000,
e4m3 0x7f, e5m2 0x7f, e8m0 0xff).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..shown import Shown

FRAME = 32768

# name -> (bits, is integer)
TYPES: dict[str, tuple[int, bool]] = {
    "s2": (2, True),
    "s4": (4, True),
    "s8": (8, True),
    "u1": (1, True),
    "u2": (2, True),
    "u4": (4, True),
    "u8": (8, True),
    "u16": (16, True),
    "f16": (16, False),
    "bf16": (16, False),
    "f32": (32, False),
    "e4m3": (8, False),
    "e5m2": (8, False),
    "e2m1": (4, False),
    "e8m0": (8, False),
}
DTYPES = ("f32", "bf16", "f16")
# Their results have elements in other places than their arguments.
_MOVING = ("slice", "concat", "gather", "scatter", "first")


@dataclass(frozen=True, eq=False)
class Node:
    """One operation. `scope` is const, frame, group or array; `length` is 0 unless it is an array; `whole`: see above."""

    op: str
    args: tuple[Node, ...]
    attr: tuple[Any, ...]
    kind: str
    scope: str
    length: int
    whole: bool = False

    @property
    def value(self) -> Any:
        return self.attr[0]


class Graph:
    """Makes nodes, equal ones once."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Node] = {}

    def node(
        self,
        op: str,
        args: tuple[Node, ...] = (),
        attr: tuple[Any, ...] = (),
        *,
        kind: str,
        scope: str,
        length: int = 0,
    ) -> Node:
        key = (op, tuple(id(a) for a in args), tuple((type(v), repr(v)) for v in attr), kind, scope, length)
        made = self._made.get(key)
        if made is None:
            whole = op in ("hadamard", "whole") or (op == "field" and attr[1:] == ("whole",))
            whole = whole or (scope == "array" and op not in _MOVING and any(a.whole for a in args))
            made = self._made[key] = Node(op, args, attr, kind, scope, length, whole)
        return made


@dataclass(frozen=True)
class Field:
    """A wire field. `per` is array (length values a group), group or frame (one value each)."""

    name: str
    type: str
    per: str
    length: int

    @property
    def bits(self) -> int:
        return TYPES[self.type][0]

    @property
    def integer(self) -> bool:
        return TYPES[self.type][1]


@dataclass(frozen=True)
class StateSpec:
    """A state: one value an element of the chunk. scope is sender or both; dtype f32, bf16 or f16."""

    name: str
    dtype: str
    scope: str


@dataclass(frozen=True)
class ClaimSpec:
    """A promise: `test` (a bool graph over x, fields and `decompressed`) holds for every live element of a finite group."""

    test: Node
    bound: Node | None
    text: str


@dataclass(frozen=True, eq=False)
class Codec(Shown):
    """A compressor with its parameters bound, for one tensor dtype.

    fields      in wire order: array fields, then group fields, then frame fields
    compress    field name -> graph over x, state, uniform; its value is what the receiver will read (already `round_to`-ed / integer)
    decompress  graph over field and state leaves: array f32 of length `group`
    reopened    the same value computed on the sender from compress's graphs: equal bits to `decompress` of the fields
    sender_updates / receiver_updates   state name -> graph of its new value. Sender graphs are over x, state, uniform; receiver graphs
                over field and state leaves. A group whose decompressed value is not finite keeps its state (part of the graph).
    flags       flag name -> group bool graph (sender)
    basis       0, or the Hadamard block in which x and the result live
    versioned   True when a `both` state adds one u32 version a frame
    exact_for   tensor dtypes for which a round trip of an untouched input is exact
    cast        True for raw: rounds to the tensor's dtype and nothing else
    first       the codec that the first call after a reset uses instead (its updates set the state), or None
    """

    name: str
    dtype: str
    group: int
    basis: int
    fields: tuple[Field, ...]
    compress: dict[str, Node]
    decompress: Node
    reopened: Node
    states: tuple[StateSpec, ...] = ()
    sender_updates: dict[str, Node] = field(default_factory=dict)
    receiver_updates: dict[str, Node] = field(default_factory=dict)
    flags: dict[str, Node] = field(default_factory=dict)
    claims: tuple[ClaimSpec, ...] = ()
    exact_for: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    stochastic: bool = False
    versioned: bool = False
    cast: bool = False
    nonfinite: str = "pass"
    first: Codec | None = None
    text: str = ""

    def __repr__(self) -> str:
        return f"Codec({self.name}, {self.dtype})"

    @property
    def stateful(self) -> bool:
        return bool(self.states)

    @property
    def has_frame_fields(self) -> bool:
        return any(f.per == "frame" for f in self.fields)


def walk(roots: list[Node]) -> Iterator[Node]:
    """Every node that the roots need, arguments before users."""
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if id(node) in seen:
            continue
        if ready:
            seen.add(id(node))
            yield node
        else:
            stack.append((node, True))
            stack.extend((a, False) for a in reversed(node.args))
