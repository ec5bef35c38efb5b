"""Prints a codec's graphs as Triton statements, one a node, with names that say what a value is.

before:  scale = round_to(mul(rmax(abs(clean x)), 1/7), bf16 up), ...
after:   peak = groups.peak(x)
         bad = ~(peak < float("inf"))
         largest = tl.where(bad, 0.0, peak)
         product = largest * 0.1428571492433548
         rounded = lib.round_to(product, "bf16", True, True)
         ...

An array is [G, P] with P the power of two that holds its length, a group value [G], a frame value a scalar. Some groups of nodes that every
compressor has are printed as one cheaper statement with the same bits:

- any(not isfinite(v)) and max(abs(v)) share one reduction, `lib.peak`: a maximum that keeps NaN;
- max(abs(select(bad, 0, v))), bad as above, is select(bad, 0, peak);
- select(f != f, NaN, e) is e where e already is NaN whenever f is;
- `quantize` gives its codes as int32 and as float32, so that reading them back costs no conversion;
- rounding what is already rounded to the same type is nothing; short floats are rounded to their bits at once;
- largest and least of a group, where both are asked for, say whether it is finite; they and `select(bad, 0, v)` then need no other test;
- select(bad, 0, v) is v where what it is multiplied with is NaN for bad groups, before it is rounded;
- the first element of the largest magnitude is found by one minimum;
- what is asked of the input as it came, its ends, the values next to them, their places, is asked of 16-bit values in pairs: triton_pairs.py;
- codes within -Q .. Q of values times 1/scale, scale = up(max(abs) / Q), need no clamp: see `within`; others one on two codes: `spanned`;
- a magnitude that stands out is found and swapped to the front by masks, and scaled in a rotation's first step.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ..wire.codec import Codec, Node, walk
from .patterns import (
    all_finite,
    either_of,
    end_of_clean,
    extreme_of,
    frame_peak,
    idle_cleanings,
    inverse_of_power,
    lone_place,
    lone_swap,
    nan_anyway,
    nan_where_bad,
    next_ends,
    next_of,
    next_size,
    peak_of_clean,
    place_of_end,
    place_of_peak,
    plain,
    power_of_two,
    roots_of,
    rounded_already,
    spanned,
    spans,
    top_differences,
    turned_at_once,
    uncleaned,
    within,
    zeroed_late,
)
from .triton_names import CALLS, DTYPES, INFIX, MINUS_INF, NAMES, PLUS_INF, SHORT, TAKEN, literal, width


@dataclass
class Printer:
    """Prints nodes of one codec for tiles of `groups` groups (an expression).

    leaves   op, or (op, name), -> expression of a leaf: x, live, left (elements of the tile that exist), fields, states, uniform
    exists   expression of bool [G]: which groups exist (only frame reductions ask)
    words    variable that holds the input as it lies in memory (triton_pairs.py), where x is the input

    unrounded tells of arrays of short floats what they were rounded from, and to which type: their bits are made from that at once.
    spanned tells of codes what they were rounded from, where their words are made from that at once.
    """

    codec: Codec
    groups: str
    leaves: dict[tuple[str, str], str]
    exists: str = ""
    words: str = ""
    lines: list[str] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)
    _floats: dict[int, str] = field(default_factory=dict)
    _peaks: dict[int, str] = field(default_factory=dict)
    _ends: dict[int, tuple[str, str]] = field(default_factory=dict)
    _spans: set[int] = field(default_factory=set)
    _nexts: dict[int, tuple[str, str]] = field(default_factory=dict)
    _next_ends: set[int] = field(default_factory=set)
    _idle: set[int] = field(default_factory=set)
    _next_sizes: bool = False
    _extremes: dict[int, tuple[str, str]] = field(default_factory=dict)
    _at: dict[tuple[int, int], Node] = field(default_factory=dict)
    _lones: dict[int, tuple[str, str]] = field(default_factory=dict)
    _tops: dict[int, tuple[Node, Node, Node]] = field(default_factory=dict)
    _bits: dict[int, str] = field(default_factory=dict)
    unrounded: dict[int, tuple[str, str]] = field(default_factory=dict)
    spanned: dict[int, str] = field(default_factory=dict)
    _used: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._used.update(dict.fromkeys(TAKEN, 1))
        self._spans = spans(self.codec)
        self._next_ends = next_ends(self.codec) if self.words else set()
        nodes = list(walk(roots_of(self.codec)))
        self._next_sizes = any((found := next_size(n)) is not None and found[1].op == "x" for n in nodes)
        self._at = {(id(n.args[0]), id(n.args[1])): n for n in nodes if n.op == "at"}
        self._tops = top_differences(self.codec)
        self._idle = idle_cleanings(roots_of(self.codec), self._asks)

    # ------------------------------------------------------------ names

    def fresh(self, base: str) -> str:
        base = re.sub(r"\W", "_", base)
        n = self._used[base] = self._used.get(base, 0) + 1
        return base if n == 1 else f"{base}_{n}"

    def say(self, base: str, expression: str) -> str:
        name = self.fresh(base)
        self.lines.append(f"{name} = {expression}")
        return name

    def bits(self, node: Node) -> str | None:
        """The bits of a printed group value, where they are known."""
        return self._bits.get(id(node))

    def value(self, root: Node, name: str = "") -> str:
        """Print what `root` needs, and give its expression. `name` is what its own statement is called."""
        for node in self._needed(root):
            if id(node) not in self._names:
                self._names[id(node)] = self._node(node, name if node is root else "")
        return self._names[id(root)]

    def _needed(self, root: Node) -> list[Node]:
        """Nodes to print, arguments first; nodes that a cheaper statement replaces are not asked for."""
        order: list[Node] = []
        seen: set[int] = set()

        def visit(node: Node) -> None:
            if id(node) in seen or id(node) in self._names:
                return
            seen.add(id(node))
            for a in self._asks(node):
                visit(a)
            order.append(node)

        visit(root)
        return order

    # ------------------------------------------------------------ nodes that share a cheaper statement

    def _asks(self, node: Node) -> tuple[Node, ...]:
        """The arguments that the printed statement reads."""
        tested = all_finite(node)
        if tested is not None:
            return (tested,)
        cleaned = peak_of_clean(node) or self._span(node) or self._next(node) or extreme_of(node) or self._place(node)
        cleaned = cleaned or frame_peak(node) or self._frame_end(node) or self._of_sizes(node)
        cleaned = cleaned or self._lone(node) or self._tops.get(id(node)) or self._turned(node)[:1]
        if cleaned:
            return cleaned
        either = either_of(node, self._at)
        if either is not None:
            return either
        if id(node) in self._idle:
            return (node.args[2],)
        late = zeroed_late(node)
        if late is not None:
            return (late, *(a for a in node.args if a.op != "const"))
        if node.op == "select" and nan_anyway(node):
            return (node.args[2],)
        if node.op == "round_to" and rounded_already(node):
            return (node.args[0],)
        power = power_of_two(node)
        if power is not None:
            return (power,)
        inside = within(node)
        if inside is not None:
            return inside
        loose = uncleaned(node)
        if loose is not None:
            return tuple(n for n in (*loose, *node.args[3:]) if n is not None)
        if node.op == "select" and node.args[0].op == "live":
            return node.args[1:]
        return tuple(a for a in node.args if a.op != "const")

    def _special(self, node: Node, name: str) -> str | None:
        tested = all_finite(node)
        if tested is not None:
            if id(tested) in self._spans:
                high, low = self._both_ends(tested)
                finite = f'({high} < float("inf")) & ({low} > float("-inf"))'
            else:
                finite = f'{self._peak(tested)} < float("inf")'
            return self.say(name or "bad", f"~({finite})") if node.op == "rany" else self.say(name or "sound", finite)
        cleaned = peak_of_clean(node)
        if cleaned is not None:
            bad, v = cleaned
            return self.say(name or "largest", f"tl.where({self._names[id(bad)]}, 0.0, {self._peak(v)})")
        if id(node) in self._idle:
            return self._names[id(node.args[2])]
        alone = self._lone(node)
        if alone is not None:
            (at, swapped), v = self._swapped(*alone), self._names[id(alone[1])]
            return self.say(name or "front", f"pairs.grouped({swapped}, {v})") if node.op == "put" else at
        top = self._tops.get(id(node))
        if top is not None:
            found = f"groups.top_difference(({self._masked(top[1], MINUS_INF)}) - {self._names[id(top[2])]}[:, None])"
            return self.say(name or "difference", f"tl.where({self._names[id(top[0])]}, 0.0, {found})")
        at_once = self._turned(node)
        if at_once:
            words = f"{self._swapped(*at_once[2])[1]}, {self._names[id(at_once[0])]}"
            return self.say(name or "hadamard", f"pairs.hadamard({words}, {at_once[1]}, {node.attr[0]})")
        end = self._span(node)
        if end is not None:
            found = self._both_ends(end[1])[node.op == "rmin"]
            return self.say(name or NAMES[node.op], f"tl.where({self._names[id(end[0])]}, 0.0, {found})")
        after = self._next(node)
        if after is not None:
            self._both_ends(after[1])
            found = self._nexts[id(after[1])][node.op == "rmin"]
            return self.say(name or f"next_{NAMES[node.op]}", f"tl.where({self._names[id(after[0])]}, 0.0, {found})")
        place = self._place(node)
        if place is not None:
            bad, v = place
            found = self._both_ends(v)[node.args[0].op == "neg"]
            at = f"{self._from(v, 'place')}({self._given(v)}{self._names[id(v)]}, {found})"
            return self.say(name or "argmax", f"tl.where({self._names[id(bad)]}, 0, {at})")
        sizes = self._of_sizes(node)
        if sizes is not None:
            bad, v = (self._names[id(n)] for n in sizes)
            if node.op == "rmax":
                self._peak(sizes[1])
                return self.say(name or "next_largest", f"tl.where({bad}, 0.0, {self._nexts[id(sizes[1])][0]})")
            at, value = self._extreme(sizes[1])
            return self.say(
                name or node.op,
                f"tl.where({bad}, 0, {at})" if node.op == "argmax" else f"tl.where({bad}, 0.0, {value})",
            )
        either = either_of(node, self._at)
        if either is not None:
            return self.say(name or "at", f"tl.where({', '.join(self._names[id(n)] for n in either)})")
        extreme = extreme_of(node)
        if extreme is not None:
            bad, v = extreme
            found = f"groups.extreme({self._names[id(v)]}, {self._peak(v)})"
            return self.say(name or "extreme", f"tl.where({self._names[id(bad)]}, 0.0, {found})")
        late = zeroed_late(node)
        if late is not None:
            found = getattr(self, f"_op_{node.op}")(node)
            return self.say(name or NAMES.get(node.op, node.op), f"tl.where({self._names[id(late)]}, 0.0, {found})")
        if node.op == "to_f32" and id(node.args[0]) in self._floats:
            return self._floats[id(node.args[0])]
        if node.op == "select" and nan_anyway(node):
            return self._names[id(node.args[2])]
        if node.op == "round_to" and rounded_already(node):
            if id(node.args[0]) in self.unrounded:
                self.unrounded[id(node)] = self.unrounded[id(node.args[0])]
            return self._names[id(node.args[0])]
        return None

    def _span(self, node: Node) -> tuple[Node, Node] | None:
        """(bad, v) of an end of an array of which both are asked for."""
        found = end_of_clean(node)
        return found if found is not None and id(found[1]) in self._spans else None

    def _frame_end(self, node: Node) -> tuple[Node, Node] | None:
        """(bad, v) of an end of a frame's arrays, of which both are asked for."""
        found = end_of_clean(node, ("fmax", "fmin"))
        return found if found is not None and id(found[1]) in self._spans else None

    def _place(self, node: Node) -> tuple[Node, Node] | None:
        """(bad, v) of the place of an end of an array of which both are asked for."""
        found = place_of_end(node)
        return found[:2] if found is not None and id(found[1]) in self._spans else None

    def _next(self, node: Node) -> tuple[Node, Node] | None:
        """(bad, v) of the value next to an end, where both ends are asked for and v is the input."""
        found = next_of(node) if id(node) in self._next_ends else None
        return found[:2] if found is not None and found[1].op == "x" and id(found[1]) in self._spans else None

    def _of_sizes(self, node: Node) -> tuple[Node, Node] | None:
        """(bad, v) of the element of the largest magnitude, its place, or the next magnitude, where v is the input."""
        found = next_size(node) or place_of_peak(node) or extreme_of(node) if self.words else None
        return found if found is not None and found[1].op == "x" else None

    def _lone(self, node: Node) -> tuple[Node, Node] | None:
        """(above, v) of the place of the input's lone largest magnitude, or of the input with that swapped to the front."""
        found = lone_swap(node) or lone_place(node) if self.words else None
        if found is None or found[1].op != "x":
            return None
        return found if node.op != "put" or id(node.args[0].args[0]) in self._idle else None

    def _swapped(self, above: Node, v: Node) -> tuple[str, str]:
        if id(v) not in self._lones:
            peak = self._peak(v)
            self._lones[id(v)] = at, swapped = self.fresh("at"), self.fresh("swapped")
            call = f"pairs.lone({self.words}, {self._names[id(v)]}, {peak}, {self._names[id(above)]})"
            self.lines.append(f"{at}, {swapped} = {call}")
        return self._lones[id(v)]

    def _turned(self, node: Node) -> tuple[Node, float, tuple[Node, Node]] | tuple[()]:
        """What is scaled and rotated at once, the scale, and what `_lone` says of it."""
        found = turned_at_once(node)
        alone = self._lone(found[0]) if found is not None else None
        return (*found, alone) if found is not None and alone is not None else ()

    def _extreme(self, v: Node) -> tuple[str, str]:
        if id(v) not in self._extremes:
            peak = self._peak(v)
            self._extremes[id(v)] = at, value = self.fresh("at"), self.fresh("extreme")
            self.lines.append(f"{at}, {value} = pairs.extreme({self.words}, {self._names[id(v)]}, {peak})")
        return self._extremes[id(v)]

    def _from(self, v: Node, function: str) -> str:
        """A function over a group, of the input's words where there are any."""
        return f"pairs.{function}" if self.words and v.op == "x" else f"groups.{function}"

    def _given(self, v: Node) -> str:
        return f"{self.words}, " if self.words and v.op == "x" else ""

    def _both_ends(self, v: Node) -> tuple[str, str]:
        if id(v) in self._ends:
            return self._ends[id(v)]
        if v.op == "x" and self._next_ends:
            high, after, deep, before = (self.fresh(n) for n in ("high", "next_high", "deep", "next_deep"))
            call = f"pairs.ends({self.words}, {self._names[id(v)]}, {self.leaves['live', '']}, FULL)"
            self.lines.append(f"{high}, {after}, {deep}, {before} = {call}")
            self._nexts[id(v)] = after, before
        else:
            given = self._given(v)
            high = self.say("high", f"{self._from(v, 'highest')}({given}{self._masked(v, MINUS_INF)})")
            deep = self.say("deep", f"{self._from(v, 'lowest')}({given}{self._masked(v, PLUS_INF)})")
        self._ends[id(v)] = high, deep
        return high, deep

    def _rounded(self, node: Node) -> str:
        """What a `round_to` or a `quantize` rounds."""
        loose = uncleaned(node)
        if loose is None:
            return self._tensor_arg(node, 0)
        v, low, inverse = (self._names[id(n)] if n is not None else "" for n in loose)
        if low:
            v = self.say("difference", f"{v} - {low}[:, None]")
        return self.say("product", f"{v} * {inverse}[:, None]")

    def _peak(self, v: Node) -> str:
        if id(v) not in self._peaks and self.words and v.op == "x" and self._next_sizes:
            self._peaks[id(v)], after = self.fresh("peak"), self.fresh("next_peak")
            self._nexts[id(v)] = after, after
            call = f"pairs.peaks({self.words}, {self._names[id(v)]}, {self.leaves['live', '']}, FULL)"
            self.lines.append(f"{self._peaks[id(v)]}, {after} = {call}")
        elif id(v) not in self._peaks:
            call = f"{self._from(v, 'peak')}({self._given(v)}{self._masked(v, '0.0')})"
            self._peaks[id(v)] = self.say("peak", call)
        return self._peaks[id(v)]

    # ------------------------------------------------------------ one node

    def _node(self, node: Node, name: str) -> str:
        if (node.op, "") in self.leaves:
            return self.leaves[node.op, ""]
        if node.op in ("field", "state", "uniform"):
            return self.leaves[node.op, str(node.attr[0])]
        if node.op == "const":
            return literal(node.value)
        special = self._special(node, name)
        if special is not None:
            return special
        printer: Callable[[Node], str] | None = getattr(self, f"_op_{node.op}", None)
        name = name or NAMES.get(node.op, node.op)
        if node.op == "quantize":
            return self._quantize(node, name)
        if node.op == "select" and node.args[0].op == "live":
            return self._select_live(node, name)
        if node.op == "select" and id(node.args[2]) in self._bits and nan_where_bad(node) is node.args[0]:
            bits = f"tl.where({self._arg(node, 0)}, 0x7F, {self._bits[id(node.args[2])]})"
            self._bits[id(node)] = self.say("bits", bits)
        if node.op in INFIX:
            a, b = (self._arg(node, i) for i in (0, 1))
            return self.say(name, f"{a} {INFIX[node.op]} {b}")
        if node.op in CALLS:
            return self.say(name, f"{CALLS[node.op]}({', '.join(self._arg(node, i) for i in range(len(node.args)))})")
        if printer is None:
            raise NotImplementedError(f"the Triton back end cannot generate `{node.op}`")
        return self.say(name, printer(node))

    def _arg(self, node: Node, i: int) -> str:
        """Argument i, with an axis more where the result is an array and the argument one value a group."""
        a = node.args[i]
        text = literal(a.value) if a.op == "const" else self._names[id(a)]
        return f"{text}[:, None]" if a.scope == "group" and node.scope == "array" else text

    def _tensor_arg(self, node: Node, i: int) -> str:
        """Like `_arg`, but a constant as a tensor: some helpers look at bits."""
        a = node.args[i]
        if a.op != "const":
            return self._arg(node, i)
        shape = {"array": "[1, 1]", "group": "[1]"}.get(node.scope, "[]")
        return f"tl.full({shape}, {literal(a.value)}, tl.{DTYPES[a.kind]})"

    def _shape(self, node: Node) -> str:
        return f"[{self.groups}, {width(node.length)}]"

    def _masked(self, v: Node, neutral: str) -> str:
        """`v`, an array, with `neutral` where elements do not exist."""
        text = self._names[id(v)]
        if v.length == self.codec.group and not v.whole:
            return f"{text} if FULL else tl.where({self.leaves['live', '']}, {text}, {neutral})"
        if width(v.length) != v.length:
            return f"tl.where(groups.columns({width(v.length)}) < {v.length}, {text}, {neutral})"
        return text

    def _live(self, v: Node) -> str:
        """bool [G, P] (or broadcastable): which elements of `v` exist."""
        if v.length == self.codec.group and not v.whole:
            return self.leaves["live", ""]
        return f"(groups.columns({width(v.length)}) < {v.length})"

    def _all(self, v: Node) -> str:
        """Whether all elements of `v` exist, where that is known when the kernel is compiled."""
        return "FULL" if self._live(v) == self.leaves["live", ""] else str(width(v.length) == v.length)

    def _quantize(self, node: Node, name: str) -> str:
        lo, hi = node.args[1].value, node.args[2].value
        inside = within(node)
        if inside is not None:
            bad, v, inverse = (self._names[id(n)] for n in inside)
            factor = self.say("factor", f"tl.where({bad}, 1.0, {inverse})")
            call = f"lib.quantize_within(tl.where({bad}[:, None], {float(lo)}, {v}) * {factor}[:, None])"
        elif len(node.args) == 3:
            value = self._rounded(node)
            if spanned(node):
                self.spanned[id(node)] = value
            call = f"lib.quantize({value}, {lo}, {hi})"
        else:
            call = f"lib.quantize_random({self._rounded(node)}, {self._arg(node, 3)}, {lo}, {hi})"
        code = self.fresh(name)
        number = self.fresh(f"{code}_number")
        self.lines.append(f"{code}, {number} = {call}")
        self._floats[id(node)] = number
        return code

    def _select_live(self, node: Node, name: str) -> str:
        """Whole tiles need no mask. Other forms of a value are masked with it."""
        live, v, other = self.leaves["live", ""], node.args[1], self._arg(node, 2)
        if id(v) in self._floats:
            number = self._floats[id(v)]
            masked = f"{number} if FULL else tl.where({live}, {number}, {float(node.args[2].value)})"
            self._floats[id(node)] = self.say(f"{name}_number", masked)
        if id(v) in self.unrounded and node.args[2].value == 0.0:
            rounded, kind = self.unrounded[id(v)]
            self.unrounded[id(node)] = (
                self.say("masked", f"{rounded} if FULL else tl.where({live}, {rounded}, 0.0)"),
                kind,
            )
        text = self._arg(node, 1)
        return self.say(name, f"{text} if FULL else tl.where({live}, {text}, {other})")

    # ------------------------------------------------------------ the rest of the table

    def _op_count(self, node: Node) -> str:
        return f"groups.live_count({self.leaves['left', '']}, {self.groups}, {self.codec.group})"

    def _op_iota(self, node: Node) -> str:
        return f"groups.columns({width(node.length)}) + tl.zeros({self._shape(node)}, tl.int32)"

    def _op_neg(self, node: Node) -> str:
        # Triton's minus subtracts from 0, which leaves the sign of a 0 as it is.
        return f"{self._arg(node, 0)} * -1.0" if node.kind == "f32" else f"-{self._arg(node, 0)}"

    def _op_invert(self, node: Node) -> str:
        return f"~{self._arg(node, 0)}"

    def _op_rsqrt(self, node: Node) -> str:
        return f"lib.reciprocal(tl.sqrt_rn({self._arg(node, 0)}))"

    def _op_sign(self, node: Node) -> str:
        return f"lib.sign{'_f32' if node.kind == 'f32' else ''}({self._arg(node, 0)})"

    def _op_isfinite(self, node: Node) -> str:
        return f'tl.abs({self._arg(node, 0)}) < float("inf")'

    def _op_to_f32(self, node: Node) -> str:
        return f"{self._arg(node, 0)}.to(tl.float32)"

    def _op_min2(self, node: Node) -> str:
        fn = "lib.smaller" if node.kind == "f32" else "tl.minimum"
        return f"{fn}({self._tensor_arg(node, 0)}, {self._tensor_arg(node, 1)})"

    def _op_max2(self, node: Node) -> str:
        fn = "lib.larger" if node.kind == "f32" else "tl.maximum"
        return f"{fn}({self._tensor_arg(node, 0)}, {self._tensor_arg(node, 1)})"

    def _op_round_to(self, node: Node) -> str:
        kind, how, flush = node.attr
        power = power_of_two(node)
        if power is not None:
            return f"lib.power_of_two({self._names[id(power)]})"
        value = self._rounded(node)
        if node.scope == "group" and kind == "e4m3" and how == "nearest":
            self._bits[id(node)] = self.say("bits", f'lib.nearest_bits({value}, "{kind}")')
            return f'lib.decode({self._bits[id(node)]}, "{kind}")'
        if node.scope == "array" and how == "nearest" and not flush:
            if kind not in SHORT:
                return f'lib.nearest({value}, "{kind}")'
            product = ", True" if uncleaned(node) is not None else ""
            self.unrounded[id(node)] = value, f'"{kind}"{product}'
            return f'lib.nearest({value}, "{kind}")'
        if how == "down":
            finite = end_of_clean(node.args[0]) is not None or self._next(node.args[0]) is not None
            return f'lib.round_down({value}, "{kind}", {flush}{", True" if finite else ""})'
        known = f", {sure}" if (sure := plain(node.args[0])) else ""
        return f'lib.round_to({value}, "{kind}", {how == "up"}, {flush}{known})'

    def _op_rcp(self, node: Node) -> str:
        return f"lib.reciprocal{'_of_power' if inverse_of_power(node) else ''}({self._arg(node, 0)})"

    def _op_spread(self, node: Node) -> str:
        a = node.args[0]
        if a.scope == "group":
            return f"tl.broadcast_to({self._arg(node, 0)}, {self._shape(node)})"
        return f"tl.full({self._shape(node)}, {self._arg(node, 0)}, tl.{DTYPES[node.kind]})"

    def _op_whole(self, node: Node) -> str:
        return self._arg(node, 0)

    def _op_plane(self, node: Node) -> str:
        return f"lib.plane({self._arg(node, 0)}, {node.attr[0]}, {node.attr[1]})"

    def _op_rmax(self, node: Node) -> str:
        return f"groups.largest({self._masked(node.args[0], MINUS_INF)})"

    def _op_rmin(self, node: Node) -> str:
        return f"groups.least({self._masked(node.args[0], PLUS_INF)})"

    def _op_rsum(self, node: Node) -> str:
        return f"groups.tree_sum({self._masked(node.args[0], '0.0')})"

    def _op_rany(self, node: Node) -> str:
        return f"groups.any_of({self._masked(node.args[0], 'False')})"

    def _op_rall(self, node: Node) -> str:
        return f"groups.all_of({self._masked(node.args[0], 'True')})"

    def _per_group(self, node: Node, fn: str, neutral: str) -> str:
        """The group values that a frame reduction reads, neutral where a group does not exist."""
        a = node.args[0]
        cleaned = frame_peak(node) or self._frame_end(node)
        if cleaned is not None:
            bad, v = cleaned
            found = self._peak(v) if frame_peak(node) else self._both_ends(v)[node.op == "fmin"]
            text = self.say("per_group", f"tl.where({self._names[id(bad)]}, 0.0, {found})")
        elif a.scope == "group":
            text = self._names[id(a)]
        else:
            text = self.say("per_group", f"groups.{fn}({self._masked(a, neutral)})")
        return self.say("of_groups", f"{text} if FULL else tl.where({self.exists}, {text}, {neutral})")

    def _op_fmax(self, node: Node) -> str:
        return f"groups.largest({self._per_group(node, 'largest', MINUS_INF)})"

    def _op_fmin(self, node: Node) -> str:
        return f"groups.least({self._per_group(node, 'least', PLUS_INF)})"

    def _op_fsum(self, node: Node) -> str:
        return f"groups.frame_sum({self._per_group(node, 'tree_sum', '0.0')})"

    def _op_hadamard(self, node: Node) -> str:
        shape = self._shape(node)
        flat = f"tl.reshape({self._arg(node, 0)}, [{self.groups} * {width(node.length)}])"
        return f"tl.reshape(groups.hadamard({flat}, {node.attr[0]}), {shape})"

    def _op_argmax(self, node: Node) -> str:
        return f"groups.argmax({self._names[id(node.args[0])]}, {self._live(node.args[0])}, {self._all(node.args[0])})"

    def _op_top(self, node: Node) -> str:
        return f"groups.top({self._names[id(node.args[0])]}, {self._live(node.args[0])}, {node.attr[0]}, {self._all(node.args[0])})"

    def _op_first(self, node: Node) -> str:
        a = node.args[0]
        return (
            f"groups.first_true({self._names[id(a)]}, {self._live(a)}, {a.length}, {node.length}, {width(node.length)})"
        )

    def _per_group_arg(self, node: Node, i: int) -> str:
        """Argument i as [G]."""
        a = node.args[i]
        if a.scope == "group":
            return self._names[id(a)]
        value = literal(a.value) if a.op == "const" else self._names[id(a)]
        return f"tl.full([{self.groups}], {value}, tl.{DTYPES[a.kind]})"

    def _op_at(self, node: Node) -> str:
        found = f"groups.at({self._names[id(node.args[0])]}, {self._per_group_arg(node, 1)})"
        return f"{found} != 0" if node.kind == "bool" else found

    def _op_put(self, node: Node) -> str:
        return f"groups.put({self._names[id(node.args[0])]}, {self._per_group_arg(node, 1)}, {self._per_group_arg(node, 2)})"

    def _op_gather(self, node: Node) -> str:
        v, index = node.args
        return f"groups.gather({self._names[id(v)]}, {self._names[id(index)]}, {v.length})"

    def _op_scatter(self, node: Node) -> str:
        index, v = (self._names[id(a)] for a in node.args)
        return f"groups.scatter({index}, {v}, {node.args[0].length}, {width(node.length)})"

    def _op_slice(self, node: Node) -> str:
        v = node.args[0]
        return f"groups.window({self._names[id(v)]}, {node.attr[0]}, {width(node.length)})"

    def _op_concat(self, node: Node) -> str:
        begin, text = 0, f"tl.zeros({self._shape(node)}, tl.{DTYPES[node.kind]})"
        for a in node.args:
            text = f"groups.paste({text}, {self._names[id(a)]}, {begin}, {a.length})"
            begin += a.length
        return text
