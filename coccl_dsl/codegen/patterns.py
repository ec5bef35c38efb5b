"""Shapes of compressor graphs that have a cheaper form with the same bits. triton_graph.py lists what it prints for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from ..wire.builtins import f32
from ..wire.codec import Codec, Node, walk

# Types of scales that neither saturate nor lose precision near 0: (type, how, flush).
_SAFE_SCALES = (("bf16", "up", True), ("f32", "up", True))
_SAFE_LOWS = (("bf16", "down", True), ("f32", "down", True))


def roots_of(codec: Codec) -> list[Node]:
    """What a kernel that compresses may have to compute."""
    return [*codec.compress.values(), codec.reopened, *codec.sender_updates.values(), *codec.flags.values()]


def all_finite(node: Node) -> Node | None:
    """v where the node is any(not isfinite(v)) or all(isfinite(v))."""
    if node.op == "rall" and node.args[0].op == "isfinite":
        return node.args[0].args[0]
    if node.op == "rany" and node.args[0].op == "invert" and node.args[0].args[0].op == "isfinite":
        return node.args[0].args[0].args[0]
    return None


def peak_of_clean(node: Node) -> tuple[Node, Node] | None:
    """(bad, v) where the node is max(abs(clean)) or abs(at(clean, argmax(abs(clean)))), clean = select(bad, 0, v), and bad says that v is
    not finite."""
    if node.op == "abs":
        return extreme_of(node.args[0])
    if node.op != "rmax" or node.args[0].op != "abs":
        return None
    clean = node.args[0].args[0]
    if clean.op != "select" or clean.args[1].op != "const" or clean.args[1].value != 0.0:
        return None
    bad, v = clean.args[0], clean.args[2]
    return (bad, v) if bad.op == "rany" and all_finite(bad) is v else None


def clean_of(node: Node) -> tuple[Node, Node] | None:
    """(bad, v) where the node is select(bad, 0, v) and bad says that v is not finite."""
    if node.op != "select" or node.args[1].op != "const" or node.args[1].value != 0.0:
        return None
    bad, v = node.args[0], node.args[2]
    return (bad, v) if bad.op == "rany" and all_finite(bad) is v else None


def frame_peak(node: Node) -> tuple[Node, Node] | None:
    """(bad, v) where the node is the largest magnitude of a frame whose groups were cleaned: clean = select(bad, 0, v)."""
    return clean_of(node.args[0].args[0]) if node.op == "fmax" and node.args[0].op == "abs" else None


def end_of_clean(node: Node, ops: tuple[str, ...] = ("rmax", "rmin")) -> tuple[Node, Node] | None:
    """(bad, v) where the node is the largest or the least of select(bad, 0, v)."""
    return clean_of(node.args[0]) if node.op in ops else None


def place_of_end(node: Node) -> tuple[Node, Node, bool] | None:
    """(bad, v, least) where the node is argmax(clean) or argmax(-clean), clean = select(bad, 0, v)."""
    if node.op != "argmax":
        return None
    least = node.args[0].op == "neg"
    found = clean_of(node.args[0].args[0] if least else node.args[0])
    return (*found, least) if found is not None else None


def spans(codec: Codec) -> set[int]:
    """ids of arrays whose largest and least values are asked for, cleaned, and whose largest magnitude is not."""
    found: dict[str, set[int]] = {"rmax": set(), "rmin": set(), "peak": set()}
    for node in walk(roots_of(codec)):
        end, place, peak = end_of_clean(node), place_of_end(node), peak_of_clean(node) or frame_peak(node)
        end = end or end_of_clean(node, ("fmax", "fmin"))
        if end is not None:
            found["rmax" if node.op in ("rmax", "fmax") else "rmin"].add(id(end[1]))
        if place is not None:
            found["rmin" if place[2] else "rmax"].add(id(place[1]))
        if peak is not None:
            found["peak"].add(id(peak[1]))
    return (found["rmax"] & found["rmin"]) - found["peak"]


def next_of(node: Node) -> tuple[Node, Node, bool] | None:
    """(bad, v, least) where the node is the largest value of a cleaned group but for its first largest element, or the least but for its
    first least one: the element takes the value of the group's other end, clean = select(bad, 0, v),

        max(put(clean, argmax(clean) & mask, min(clean)))  or  min(put(clean, argmax(-clean) & mask, max(clean)))

    where the mask is none or keeps all places.
    """
    if node.op not in ("rmax", "rmin") or node.args[0].op != "put":
        return None
    clean, at, value = node.args[0].args
    least = node.op == "rmin"
    if at.op == "and_bits" and at.args[1].op == "const" and at.args[1].value >= clean.length - 1:
        whole = at.args[1].value
        at = at.args[0] if whole & (whole + 1) == 0 else at
    found, place, end = clean_of(clean), place_of_end(at), end_of_clean(value, ("rmax",) if least else ("rmin",))
    if found is None or end is None or place is None or found != end or place != (*found, least):
        return None
    return (*found, least)


def next_ends(codec: Codec) -> set[int]:
    """ids of nodes that `next_of` knows, where the sign of a zero is lost on the way to all that reads them: they are rounded to fields that
    flush, at once or less such a field and times a constant."""
    users: dict[int, list[Node]] = {}
    nodes = list(walk(roots_of(codec)))
    for node in nodes:
        for a in node.args:
            users.setdefault(id(a), []).append(node)

    def flushed(node: Node) -> bool:
        return all(
            (user.op == "round_to" and bool(user.attr[2]))
            or (user.op == "sub" and user.args[0] is node and _never_minus_zero(user.args[1]) and flushed(user))
            or (user.op == "mul" and user.args[1].op == "const" and flushed(user))
            for user in users.get(id(node), ())
        )

    fields = {id(node) for node in roots_of(codec)}
    return {id(n) for n in nodes if next_of(n) is not None and id(n) not in fields and flushed(n)}


def _never_minus_zero(node: Node) -> bool:
    return node.op == "round_to" and bool(node.attr[2])


def place_of_peak(node: Node) -> tuple[Node, Node] | None:
    """(bad, v) where the node is argmax(abs(clean)), clean = select(bad, 0, v)."""
    return clean_of(node.args[0].args[0]) if node.op == "argmax" and node.args[0].op == "abs" else None


def next_size(node: Node) -> tuple[Node, Node] | None:
    """(bad, v) where the node is the largest magnitude but for the first largest one: max(abs(put(clean, argmax(abs(clean)), 0)))."""
    if node.op != "rmax" or node.args[0].op != "abs" or node.args[0].args[0].op != "put":
        return None
    clean, at, zero = node.args[0].args[0].args
    found = clean_of(clean)
    zeroed = zero.op == "const" and zero.value == 0.0
    return found if found is not None and zeroed and place_of_peak(at) == found else None


def lone_place(node: Node) -> tuple[Node, Node] | None:
    """(above, v) where the node is select(above, p, 0), perhaps masked, p the place of the largest magnitude of clean = select(bad, 0, v), and
    above says that this one is larger than all others, by a factor of at least 1:

        above = max(abs(clean)) > c * max(abs(put(clean, p, 0)))
    """
    if node.op == "and_bits" and node.args[1].op == "const" and node.args[0].op == "select":
        place, mask = node.args[0].args[1], node.args[1].value
        whole = mask & (mask + 1) == 0 and place.op == "argmax" and mask >= place.args[0].length - 1
        return lone_place(node.args[0]) if whole else None
    if node.op != "select" or node.args[0].op != "gt" or node.args[2].op != "const" or node.args[2].value != 0:
        return None
    above, found = node.args[0], place_of_peak(node.args[1])
    size, bound = above.args
    if bound.op != "mul" or bound.args[0].op != "const" or not 1.0 <= bound.args[0].value < math.inf:
        return None
    same = found is not None and peak_of_clean(size) == found and next_size(bound.args[1]) == found
    return (above, found[1]) if found is not None and same else None


def lone_swap(node: Node) -> tuple[Node, Node] | None:
    """(above, v) where the node is `clean` with its first element and the one at i = lone_place swapped: put(put(clean, i, at(clean, 0)), 0,
    at(clean, i))."""
    if node.op != "put" or node.args[0].op != "put" or node.args[2].op != "at":
        return None
    (clean, place, first), zero, (v, at) = node.args[0].args, node.args[1], node.args[2].args
    found = lone_place(place)
    if found is None or v is not clean or at is not place or first.op != "at" or first.args[0] is not clean:
        return None
    known = clean_of(clean)
    starts = all(i.op == "const" and i.value == 0 for i in (zero, first.args[1]))
    return found if starts and known is not None and known[1] is found[1] else None


def _taken(node: Node) -> bool:
    """Whether all values of the node are some of select(bad, 0, v)."""
    if node.op == "put":
        return _taken(node.args[0]) and _taken(node.args[2])
    return clean_of(node) is not None or (node.op == "at" and _taken(node.args[0]))


def turned(node: Node) -> tuple[Node, float] | None:
    """(v, c) where the node is hadamard(v * c), v are finite values, and c, a power of two, leaves no sum that overflows: all results are at
    most half of float32's largest number."""
    if node.op != "hadamard" or node.args[0].op != "mul" or node.args[0].args[1].op != "const":
        return None
    v, c = node.args[0].args[0], node.args[0].args[1].value
    fits = node.attr[0] >= 4 and 0.0 < c * node.attr[0] <= 1.0 and math.frexp(c)[0] == 0.5
    return (v, c) if fits and _taken(v) else None


def turned_at_once(node: Node) -> tuple[Node, float] | None:
    """`turned` where values of 16 bits may be scaled by c and by the transform's own factor at once: both are powers of two, and so small a
    product loses no bit of such a value, nor of a sum of some, on the way to float32's least magnitude, 2^-149."""
    found = turned(node)
    size = node.attr[0] if found is not None else 0
    if found is None or size.bit_length() % 2 == 0 or found[1] * size**-0.5 < 2.0**-16:
        return None
    return found


def top_difference(node: Node) -> tuple[Node, Node, Node] | None:
    """(bad, v, low) where the node is max(v) - low, low = down(min(v)), flushed, and v is `turned`: max(v - low) to what reads steps of it.

    Only where low was flushed may all v - low be below 0: then a step is 0, whichever of them it is made from.
    """
    if node.op != "sub" or node.args[0].op != "rmax" or node.args[1].op != "round_to":
        return None
    v, low = node.args[0].args[0], node.args[1]
    if low.attr not in _SAFE_LOWS or low.args[0].op != "rmin" or low.args[0].args[0] is not v or turned(v) is None:
        return None
    bad = zero_where_bad(v)
    return (bad, v, low) if bad is not None else None


def top_differences(codec: Codec) -> dict[int, tuple[Node, Node, Node]]:
    """What `top_difference` says, by the id of the difference, where all that reads it are steps: see `step_of_span`."""
    roots = roots_of(codec)
    nodes = list(walk(roots))
    products = {id(node.args[0]) for node in nodes if step_of_span(node) is not None}
    stored = {id(root) for root in roots} | {
        id(a) for n in nodes if step_of_span(n) is None for a in n.args if id(a) in products
    }
    found: dict[int, tuple[Node, Node, Node]] = {}
    for node in nodes:
        top = top_difference(node)
        if top is not None and id(node) not in stored:
            readers = [n for n in nodes if any(a is node for a in n.args)]
            if all(id(n) in products and id(n) not in stored for n in readers):
                found[id(node)] = top
    return found


def step_of_span(node: Node) -> tuple[Node, float] | None:
    """(difference, c) where the node is up(difference * c), flushed, 0 < c <= 1, and the difference is top_difference's."""
    if node.op != "round_to" or node.attr not in _SAFE_SCALES or node.args[0].op != "mul":
        return None
    difference, c = node.args[0].args
    if c.op != "const" or not 0.0 < c.value <= 1.0 or top_difference(difference) is None:
        return None
    return difference, c.value


def spanned(node: Node) -> bool:
    """Whether what a `quantize` to 0 .. Q rounds is NaN or within -1 .. Q + 1/2: (v - low) / step with

        low = down(min(v)),  step = select(bad, NaN, up((max(v) - low) / Q)),  v as `turned` has it

    A step that was flushed is 1, and the values then are next to nothing. A low that was flushed is above what is 2^-126 below it at most,
    and no step is less.
    """
    if node.op != "quantize" or len(node.args) != 3 or node.args[0].op != "mul" or node.args[1].value != 0:
        return False
    difference, inverse = node.args[0].args
    scale = inverse.args[0] if inverse.op == "rcp" else node
    if difference.op != "sub" or scale.op != "select" or scale.args[0].op != "eq" or scale.args[1].op != "const":
        return False
    step, (zero_step, zero) = scale.args[2], scale.args[0].args
    if zero_step is not step or zero.op != "const" or zero.value != 0.0 or scale.args[1].value != 1.0:
        return False
    bad = nan_where_bad(step)
    found = step_of_span(step.args[2]) if bad is not None and step.op == "select" else None
    if found is None or found[1] != f32(1.0 / f32(node.args[2].value)):
        return False
    return top_difference(found[0]) == (bad, *difference.args)


def either_of(node: Node, known: dict[tuple[int, int], Node]) -> tuple[Node, Node, Node] | None:
    """(cond, a, b) where the node is at(v, select(cond, i, j)), perhaps masked, and a and b are at(v, i) and at(v, j), which are `known` by
    (v, index), i and j places within v."""
    if node.op != "at":
        return None
    v, at = node.args
    if at.op == "and_bits" and at.args[1].op == "const":
        mask = at.args[1].value
        at = at.args[0] if mask & (mask + 1) == 0 and mask >= v.length - 1 else at
    if at.op != "select" or not all(_within(i, v.length) for i in at.args[1:]):
        return None
    a, b = (known.get((id(v), id(i))) for i in at.args[1:])
    return (at.args[0], a, b) if a is not None and b is not None else None


def _within(index: Node, length: int) -> bool:
    if index.op == "const":
        return 0 <= index.value < length
    return index.op == "argmax" and index.args[0].length <= length


def asks_of_input(codec: Codec) -> bool:
    """Whether the input's largest magnitude, or both of its ends, are asked for."""
    return any((v := all_finite(node)) is not None and v.op == "x" for node in walk(roots_of(codec)))


def extreme_of(node: Node) -> tuple[Node, Node] | None:
    """(bad, v) where the node is at(clean, argmax(abs(clean))), clean = select(bad, 0, v)."""
    if node.op != "at" or node.args[1].op != "argmax":
        return None
    size = node.args[1].args[0]
    return clean_of(node.args[0]) if size.op == "abs" and size.args[0] is node.args[0] else None


def _end_with_puts(node: Node, op: str) -> tuple[Node, Node] | None:
    """(bad, v) of the largest or least of a cleaned group, or of one where an element took the value of another."""
    if node.op != op:
        return None
    a = node.args[0]
    if a.op == "put" and (end := end_of_clean(a.args[2])) is not None and clean_of(a.args[0]) == end:
        return end
    return clean_of(a)


def plain(node: Node) -> int:
    """What `round_to` may rely on: 3, finite: the largest or the least value of a group that was cleaned; 2, finite and not negative: the
    largest magnitude of one, perhaps times a constant up to 1; 1, not negative and not NaN: the largest value less a float32 bound below the
    least one, times a constant. (A bound of a narrower type saturates, above values that are lower still.)"""
    if end_of_clean(node) is not None:
        return 3
    scaled = node.op == "mul" and node.args[1].op == "const" and node.args[1].value > 0.0
    inner = node.args[0] if scaled else node
    if peak_of_clean(inner) is not None:
        return 2 if not scaled or node.args[1].value <= 1.0 else 0
    if inner.op != "sub" or inner.args[1].op != "round_to" or inner.args[1].attr[:2] != ("f32", "down"):
        return 0
    top, low = _end_with_puts(inner.args[0], "rmax"), _end_with_puts(inner.args[1].args[0], "rmin")
    return int(top is not None and top == low)


def nan_where_bad(node: Node) -> Node | None:
    """`bad` where the node is NaN for groups that are bad, and known to be by its form."""
    match node.op:
        case "select" if node.args[1].op == "const" and node.args[1].kind == "f32":
            value = node.args[1].value
            if math.isnan(value):
                return node.args[0]
            # select(s == 0, 1, s) is NaN where s is.
            cond = node.args[0]
            if cond.op == "eq" and cond.args[0] is node.args[2]:
                return nan_where_bad(node.args[2])
        case "rcp":
            return nan_where_bad(node.args[0])
        case "mul":
            return nan_where_bad(node.args[0]) or nan_where_bad(node.args[1])
    return None


def zero_where_bad(node: Node) -> Node | None:
    """`bad` where all values of the node are 0.0 for groups that are bad, since they come of select(bad, 0, v)."""
    found = clean_of(node)
    if found is not None:
        return found[0]
    match node.op:
        case "at" | "hadamard" | "rmax" | "rmin":
            return zero_where_bad(node.args[0])
        case "mul" if node.args[1].op == "const" and 0.0 < node.args[1].value < math.inf:
            return zero_where_bad(node.args[0])
        case "put":
            bad = zero_where_bad(node.args[0])
            return bad if zero_where_bad(node.args[2]) is bad else None
    return None


def zeroed_late(node: Node) -> Node | None:
    """`bad` where a value a group had better be made 0 for bad groups than the array that it is taken from."""
    return zero_where_bad(node) if node.op in ("at", "rmax", "rmin") else None


def idle_cleanings(roots: list[Node], reads: Callable[[Node], tuple[Node, ...]]) -> set[int]:
    """ids of select(bad, 0, v) that may as well be v: on every way to what is stored, a value of a bad group is replaced, or multiplied with
    NaN. reads: what a statement reads of its node's arguments."""
    order = list(walk(roots))
    if any(node.op in ("bits", "from_bits") for node in order):
        return set()
    # Of each node, the conditions under which its value does not matter; a frame's value matters to all its groups.
    without: dict[int, frozenset[int]] = {id(root): frozenset() for root in roots}

    def ways(node: Node) -> Iterator[tuple[Node, frozenset[int]]]:
        here = without[id(node)]
        for a in reads(node):
            bad = zeroed_late(node) if a is node.args[0] else None
            if node.op == "select" and a is node.args[2] and a is not node.args[1]:
                bad = node.args[0]
            elif node.op == "mul" and node.args[0] is not node.args[1]:
                bad = nan_where_bad(node.args[1] if a is node.args[0] else node.args[0])
            yield a, frozenset() if a.scope == "frame" else here if bad is None else here | {id(bad)}

    # A statement may read what is no argument of its node: until nothing changes.
    before: dict[int, frozenset[int]] = {}
    while before != without:
        before = dict(without)
        for node in reversed(order):
            if id(node) in without:
                for a, bad in ways(node):
                    without[id(a)] = without[id(a)] & bad if id(a) in without else bad
    return {
        id(node)
        for node in order
        if (found := clean_of(node)) is not None and id(found[0]) in without.get(id(node), frozenset())
    }


def uncleaned(node: Node) -> tuple[Node, Node | None, Node] | None:
    """(v, low, inverse) where the node rounds select(bad, 0, v) * inverse, or (select(bad, 0, v) - low) * inverse, and inverse is NaN where
    bad: NaN comes of any value then, and v needs no cleaning."""
    if node.op not in ("round_to", "quantize") or node.args[0].op != "mul" or node.args[0].scope != "array":
        return None
    a, inverse = node.args[0].args
    bad = nan_where_bad(inverse)
    low = a.args[1] if a.op == "sub" else None
    clean = clean_of(a.args[0] if a.op == "sub" else a)
    if bad is None or clean is None or clean[0] is not bad or (low is not None and low.scope != "group"):
        return None
    return clean[1], low, inverse


def power_of_two(node: Node) -> Node | None:
    """i where the node is round_to(ldexp(1, i), e8m0)."""
    if node.op != "round_to" or node.attr[:2] != ("e8m0", "nearest") or node.args[0].op != "ldexp":
        return None
    one, power = node.args[0].args
    return power if one.op == "const" and one.value == 1.0 else None


def inverse_of_power(node: Node) -> bool:
    """rcp of what an e8m0 field holds, or of NaN."""
    if node.op != "rcp":
        return False
    scale = node.args[0]
    if scale.op == "select" and nan_where_bad(scale) is not None:
        scale = scale.args[2]
    return scale.op == "round_to" and scale.attr[0] == "e8m0"


def within(node: Node) -> tuple[Node, Node, Node] | None:
    """(bad, v, inverse) where a `quantize` needs no clamp: -Q .. Q, nearest, of clean * inverse, with

        clean = select(bad, 0, v)                                   bad: v is not finite
        scale = select(bad, NaN, round_to(max(abs(clean)) * c, bf16 or f32 up, flushed)),  c = float32(1/Q)
        inverse = rcp(select(scale == 0, 1, scale))

    The scale is at least max(abs(clean)) * c but for 2^-24 of it, and so clean * inverse stays within Q (1 + 2^-20), which rounds to Q: the
    product, the constant, the reciprocal (at worst a subnormal of 22 bits) and the last product each err by 2^-22 at most. A scale that was
    flushed is 1, and the values then are below 2^-100; one that saturated (Q = 1 alone) leaves 1.004, which rounds to 1. A group that is not
    finite has the inverse NaN, and NaN clamps to -Q.
    """
    if node.op != "quantize" or len(node.args) != 3 or node.args[0].op != "mul":
        return None
    low, high = node.args[1].value, node.args[2].value
    clean, inverse = node.args[0].args
    if low != -high or not 0 < high < 1 << 18 or clean.op != "select" or inverse.op != "rcp":
        return None
    nonzero = inverse.args[0]
    if (
        nonzero.op != "select"
        or nonzero.args[0].op != "eq"
        or nonzero.args[1].op != "const"
        or nonzero.args[1].value != 1.0
    ):
        return None
    scale = nonzero.args[2]
    zero = nonzero.args[0].args
    if zero[0] is not scale or zero[1].op != "const" or zero[1].value != 0.0 or scale.op != "select":
        return None
    bad, nan, rounded = scale.args
    if nan.op != "const" or not math.isnan(nan.value) or rounded.op != "round_to" or rounded.attr not in _SAFE_SCALES:
        return None
    product = rounded.args[0]
    if product.op != "mul" or product.args[1].op != "const" or product.args[1].value != f32(1.0 / f32(high)):
        return None
    found = peak_of_clean(product.args[0])
    if found is None or found[0] is not bad or product.args[0].args[0].args[0] is not clean:
        return None
    return bad, found[1], inverse


def nan_anyway(node: Node) -> bool:
    """select(f != f, NaN, e) where e is NaN whenever f is."""
    cond, nan, e = node.args
    if cond.op != "ne" or cond.args[0] is not cond.args[1] or nan.op != "const" or nan.kind != "f32":
        return False
    return math.isnan(nan.value) and _carries_nan(e, cond.args[0])


def _carries_nan(e: Node, f: Node) -> bool:
    return e is f or (
        e.op in ("add", "sub", "mul", "div") and e.kind == "f32" and any(_carries_nan(a, f) for a in e.args)
    )


def rounded_already(node: Node) -> bool:
    """Rounding to nearest of what was rounded to the same type, and masked at most."""
    kind, how, flush = node.attr
    inner = node.args[0]
    return inner.op == "round_to" and how == "nearest" and not flush and inner.attr[0] == kind


def fits(node: Node, bits: int, signed: bool) -> bool:
    """Whether an integer node's values are known to fit a field."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    found = _range(node)
    return found is not None and low <= found[0] and found[1] <= high


def _range(node: Node) -> tuple[int, int] | None:
    args = node.args
    match node.op:
        case "const":
            return (node.value, node.value) if node.kind == "i32" else None
        case "quantize":
            return args[1].value, args[2].value
        case "plane":
            return 0, (1 << node.attr[1]) - 1
        case "spread":
            return _range(args[0])
        case "select":
            a, b = _range(args[1]), _range(args[2])
            return (min(a[0], b[0]), max(a[1], b[1])) if a and b else None
        case "and_bits":
            bound = next((a.value for a in args if a.op == "const" and a.value >= 0), None)
            return (0, bound) if bound is not None else None
        case "min2" | "max2" if args[1].op == "const":
            return _clamped(node)
    return None


def _clamped(node: Node) -> tuple[int, int] | None:
    """min2(max2(v, lo), hi)."""
    inner = node.args[0]
    if node.op == "min2" and inner.op == "max2" and inner.args[1].op == "const":
        return inner.args[1].value, node.args[1].value
    return None
