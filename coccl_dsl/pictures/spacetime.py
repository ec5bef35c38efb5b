"""The space-time diagram: ranks down, steps across, an arrow for each send, a box for each launch of Folds.

Long schedules are set like music: where a step does not fit the width any more, all ranks go on in a new line below. So text keeps its size
whatever the number of steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..check.values import Message
from ..plan.ops import Copy, Exchange, Launch, Plan, Signature
from ..plan.show import fold_text
from ..wire.layout import bits_per_value
from .colours import DASHES
from .picture import Picture
from .schedule import Schedule
from .svg import LINE, SIZE, TITLE, Canvas, text_width, title_lines, wrap

WIDTH = 940
MOST_RANKS = 16  # beyond, one rank stands for all
ROOMY = 8  # lanes; with more, words that all ranks share stand once, at the head of a column
PORTS = 4  # so many sends of a rank in one step are labelled one by one
NARROWEST = 60  # pixels of a field of arrows
MARGIN = 14
OTHERS = -1


def bytes_text(size: float) -> str:
    """`512 B`, `16.5 KiB`, `2 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


def ranges(numbers: Iterable[int]) -> str:
    """`0-3, 7`."""
    parts: list[list[int]] = []
    for n in sorted(set(numbers)):
        if parts and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def chunks_text(numbers: Iterable[int], width: float = 90, bare: bool = False) -> str:
    """`chunk 3`, `chunks 0-2, 5`, or how many where that is too wide. bare: without the word."""
    kept = sorted(set(numbers))
    text = ranges(kept) if bare else f"chunk{'s' * (len(kept) > 1)} {ranges(kept)}"
    return text if text_width(text) <= width else f"{len(kept)} chunks"


def formula(s: Signature) -> str:
    """A Fold in short: `x + q → q, y`. x is the input, y the output, t a float32 chunk kept, other letters are wires of a compressor."""
    letters = {"input": "x", "output": "y", "scratch": "t"}
    sources = [letters[role] for role, _ in s.dense]
    if s.in_codec is not None:
        sources.append(s.in_codec or "raw")
    made = [s.out_codec or "raw"] if s.wire else []
    made += [letters[role] for role, _, _ in s.sinks]
    return " + ".join(sources) + " → " + ", ".join(made)


@dataclass(frozen=True)
class Box:
    """One launch of a rank: what its Folds do, on which chunks, and all of it for the tooltip."""

    formula: str
    extents: tuple[int, ...]
    title: str

    def lines(self, shared: bool, compact: bool) -> list[str]:
        """shared: the formula stands at the head of the column."""
        if shared:
            return [chunks_text(self.extents, bare=True)]
        return [self.formula] if compact else [self.formula, chunks_text(self.extents)]


def boxes(plan: Plan, rank: int) -> dict[int, list[Box]]:
    """Launches before each level's exchange; those after the last one are under the number of levels."""
    found: dict[int, list[Box]] = {}
    at = 0
    for step in plan.steps:
        if isinstance(step, Exchange):
            at = step.level + 1
        elif isinstance(step, Launch):
            text = formula(step.signature) + (f" ×{len(step.folds)}" if len(step.folds) > 1 else "")
            told = [f"rank {rank}: launch {step.signature}", *(fold_text(plan, f) for f in step.folds)]
            told += [f"output[{o}] <- input[{i}] as it is" for i, o in step.copies]
            found.setdefault(at, []).append(Box(text, tuple(f.extent for f in step.folds), "\n".join(told)))
        elif isinstance(step, Copy):
            told = ", ".join(f"output[{o}] <- input[{i}]" for i, o in step.pairs)
            extents = tuple(plan.buffers.inputs[i] for i, _ in step.pairs)
            found.setdefault(at, []).append(Box("copy x → y", extents, f"rank {rank}: copy {told}"))
    return found


@dataclass
class Port:
    """Where sends of a lane begin: one labelled message, or all of a step under one label."""

    label: str
    messages: list[Message]


@dataclass
class Column:
    """Folds before a level and the level's exchange (none after the last). shared: the formula that all lanes' Folds have, where they stand
    under it. folds, labels, arrows: widths of boxes, of port labels, of the arrows' field."""

    level: int
    boxes: dict[int, list[Box]]
    messages: list[Message] = field(default_factory=list)
    ports: dict[int, list[Port]] = field(default_factory=dict)
    head: list[str] = field(default_factory=list)
    shared: str = ""
    folds: float = 0
    labels: float = 0
    arrows: float = 0

    @property
    def width(self) -> float:
        return self.folds + self.labels + self.arrows

    @property
    def dense(self) -> bool:
        return any(len(p.messages) > 1 for row in self.ports.values() for p in row)


class _Diagram:
    def __init__(self, s: Schedule, lanes: Sequence[int], width: float):
        self.s, self.lanes, self.width = s, list(lanes), width
        self.strong = self.lanes[0]
        self.whole = len(self.lanes) == s.world
        self.compact = len(self.lanes) > ROOMY
        if not self.whole:
            self.lanes.append(OTHERS)
        self.styles = {name: i % len(DASHES) for i, name in enumerate(sorted(k for k in s.codecs if k))}
        shown = set(lanes)
        self.messages = [m for m in s.trace.messages if m.source in shown or m.target in shown]
        made = {r: boxes(s.plans[r], r) for r in lanes}
        levels = range(s.trace.levels + 1)
        self.columns = [self._column(level, {r: made[r].get(level, []) for r in lanes}) for level in levels]
        self.left = MARGIN + max(max(map(text_width, self._lane_label(r))) for r in self.lanes) + 10

    # ------------------------------------------------------------ layout

    def lane(self, rank: int) -> int:
        return rank if rank in self.lanes else OTHERS

    def _lane_label(self, rank: int) -> list[str]:
        if rank == OTHERS:
            return ["other ranks"]
        if not self.s.axes:
            return [f"rank {rank}"]
        where = zip(self.s.axes, self.s.trace.coordinates[rank], strict=True)
        return [f"rank {rank}", ", ".join(f"{a} {i}" for a, i in where)]

    def _column(self, level: int, folds: dict[int, list[Box]]) -> Column:
        c = Column(level, folds)
        formulas = {b.formula for row in folds.values() for b in row}
        if self.compact and len(formulas) == 1:
            c.shared = formulas.pop()
        texts = [t for row in folds.values() for b in row for t in b.lines(bool(c.shared), self.compact)]
        if texts:
            c.folds = max(
                max(map(text_width, texts)) + 24, max(map(text_width, (c.shared, c.shared and "of chunk"))) + 12
            )
        c.messages = [m for m in self.messages if m.level == level]
        if level == self.s.trace.levels:
            return c
        sizes = {self.s.message_size(m) for m in c.messages}
        same = len(sizes) == 1
        c.head = [f"step {level}", f"{len(c.messages)} send{'s' * (len(c.messages) != 1)}"]
        if same:
            c.head.append(f"{bytes_text(sizes.pop())}{' each' * (len(c.messages) > 1)}")
        for lane in self.lanes:
            own = sorted((m for m in c.messages if self.lane(m.source) == lane), key=lambda m: (m.target, m.source))
            c.ports[lane] = self._ports(own, same)
        if self.compact and not c.dense:
            c.head.append("chunk")
        c.labels = max((text_width(p.label) for row in c.ports.values() for p in row), default=0) + 14
        busiest = max((len(p.messages) for row in c.ports.values() for p in row), default=1)
        c.arrows = max(NARROWEST + min(10 * (busiest - 1), 150), max(map(text_width, c.head)) + 18 - c.labels)
        return c

    def _ports(self, own: list[Message], same: bool) -> list[Port]:
        if not own:
            return []
        if len(own) <= PORTS and not (self.compact and len(own) > 1):
            return [Port(self._message_label(m, same), [m]) for m in own]
        each = {self.s.message_size(m) for m in own}
        more = "" if same or len(each) > 1 else f", {bytes_text(each.pop())} each"
        return [Port(f"{len(own)} sends{more}", own)]

    def _message_label(self, m: Message, same: bool) -> str:
        label = chunks_text((w.extent for w in m.sent), 80, self.compact)
        if not self.whole:
            label = f"{m.source}: {label}" if self.lane(m.source) == OTHERS else f"{label} to {m.target}"
        return label if same else f"{label}, {bytes_text(self.s.message_size(m))}"

    def _box_height(self, c: Column) -> float:
        return LINE * (1 if c.shared or self.compact else 2) + 5

    def _height(self, lane: int, row: list[Column]) -> float:
        tallest = 14.0 if self.compact else 24.0
        for c in row:
            tallest = max(tallest, len(c.boxes.get(lane, ())) * (self._box_height(c) + 4) - 4)
            tallest = max(tallest, len(c.ports.get(lane, ())) * LINE)
            arriving = sum(self.lane(m.target) == lane for m in c.messages)
            tallest = max(tallest, min(2 * arriving, 40))
        return max(tallest, LINE * len(self._lane_label(lane))) + 8

    def _systems(self) -> list[list[Column]]:
        """Columns line by line. Where a little too much is left over for the last line, fields of arrows give way."""
        room = self.width - MARGIN - self.left
        rows: list[list[Column]] = []
        for c in self.columns:
            used = sum(k.width for k in rows[-1]) if rows else room
            spare = sum(max(0.0, k.arrows - NARROWEST) for k in (rows[-1] if rows else ()) if k.dense)
            if rows and (used + c.width <= room or (not c.messages and used + c.width <= room + spare)):
                over = max(0.0, used + c.width - room)
                for k in rows[-1] if over else ():
                    if k.dense:
                        k.arrows -= over * max(0.0, k.arrows - NARROWEST) / spare
                rows[-1].append(c)
            else:
                rows.append([c])
        return rows

    # ------------------------------------------------------------ drawing

    def draw(self) -> str:
        s = self.s
        canvas = self.canvas = Canvas(f"{s.headline}. {s.costs}")
        rows = self._systems()
        width = max(min(self.width, 640), max(self.left + sum(c.width for c in row) for row in rows) + MARGIN)
        y = float(MARGIN + SIZE)
        for line in title_lines(s.headline.replace("   ", ", "), width - 2 * MARGIN):
            canvas.text(MARGIN, y, line, bold=True, size=TITLE)
            y += LINE + 2
        for line in wrap(s.costs, width - 2 * MARGIN):
            canvas.text(MARGIN, y, line, cls="cc-muted")
            y += LINE
        for row in rows:
            y = self._system(row, y + 6)
        return canvas.svg(width, self._legend(y + 8, width) + MARGIN - 4)

    def _system(self, row: list[Column], y: float) -> float:
        heads = max(2 if self.compact and any(c.shared for c in row) else 0, max(len(c.head) for c in row))
        self.tops, self.heights = {}, {lane: self._height(lane, row) for lane in self.lanes}
        at = y + heads * LINE + 8
        previous = None
        for lane in self.lanes:
            if previous is not None and self._apart(previous, lane):
                at += 8
            self.tops[lane] = at
            at += self.heights[lane]
            previous = lane
        right = self.left + sum(c.width for c in row)
        for lane in self.lanes:
            self._lane(lane, right)
        x = self.left
        for c in row:
            if x > self.left:
                self.canvas.line([(x - 5, y), (x - 5, at)], "cc-rule", dash="2 3")
            if c.shared:
                for i, text in enumerate((c.shared, "of chunk")):
                    self.canvas.text(x, y + SIZE + (heads - 2 + i) * LINE, text, cls="cc-muted" if i else "cc-text")
            self._folds(c, x)
            x += c.folds
            for i, text in enumerate(c.head):
                self.canvas.text(x, y + SIZE + i * LINE, text, cls="cc-muted" if i else "cc-text", bold=not i)
            self._arrows(c, x)
            x += c.labels + c.arrows
        return at + 10

    def _apart(self, a: int, b: int) -> bool:
        """Whether two lanes lie in different nodes."""
        if b == OTHERS:
            return True
        return bool(self.s.axes) and self.s.trace.coordinates[a][0] != self.s.trace.coordinates[b][0]

    def _middle(self, lane: int) -> float:
        return self.tops[lane] + self.heights[lane] / 2

    def _lane(self, lane: int, right: float) -> None:
        middle = self._middle(lane)
        self.canvas.line([(self.left - 4, middle), (right, middle)], "cc-rule")
        lines = self._lane_label(lane)
        first = middle + 4 - (len(lines) - 1) * LINE / 2
        for i, text in enumerate(lines):
            self.canvas.text(MARGIN, first + i * LINE, text, cls="cc-muted" if i or lane == OTHERS else "cc-text")

    def _folds(self, c: Column, x: float) -> None:
        height, width = self._box_height(c), c.folds - 12
        for lane, row in c.boxes.items():
            y = self._middle(lane) - (len(row) * (height + 4) - 4) / 2
            for b in row:
                group = self.canvas.group("cc-fold", b.title, rank=lane)
                self.canvas.rect(x, y, width, height, "cc-box", radius=3, into=group)
                for i, text in enumerate(b.lines(bool(c.shared), self.compact)):
                    cls = "cc-muted" if i else "cc-text"
                    self.canvas.text(x + width / 2, y + (i + 1) * LINE, text, anchor="middle", cls=cls, into=group)
                y += height + 4

    def _arrows(self, c: Column, x: float) -> None:
        starts: dict[int, tuple[float, float]] = {}
        for lane, row in c.ports.items():
            y = self._middle(lane) - len(row) * LINE / 2
            for port in row:
                centre, count = y + LINE / 2, len(port.messages)
                self.canvas.rect(x - 2, centre - 6, text_width(port.label) + 4, 13, "cc-paper")
                self.canvas.text(x, centre + 4, port.label)
                gap = min(3.0, (self.heights[lane] - 8) / count)
                for i, m in enumerate(port.messages):
                    starts[id(m)] = x + c.labels - 8, centre + (i - (count - 1) / 2) * gap
                y += LINE
        ends = self._ends(c, starts)
        for m in sorted(c.messages, key=lambda m: m.source == self.strong):
            self._arrow(m, starts[id(m)], (x + c.labels + c.arrows - 12, ends[id(m)]), c.dense)

    def _ends(self, c: Column, starts: dict[int, tuple[float, float]]) -> dict[int, float]:
        """Heads of a lane side by side, in the order in which their arrows come in, so that they do not cross there."""
        found: dict[int, float] = {}
        for lane in self.lanes:
            come = sorted((m for m in c.messages if self.lane(m.target) == lane), key=lambda m: starts[id(m)][1])
            gap = min(7.0, (self.heights[lane] - 8) / max(len(come), 1))
            for i, m in enumerate(come):
                found[id(m)] = self._middle(lane) + (i - (len(come) - 1) / 2) * gap
        return found

    def _arrow(self, m: Message, start: tuple[float, float], end: tuple[float, float], dense: bool) -> None:
        names = list(dict.fromkeys(w.codec for w in m.sent))
        size = self.s.message_size(m)
        told = (
            f"step {m.level}: rank {m.source} to {m.target}, {chunks_text((w.extent for w in m.sent), 1e9)}, {size:,} bytes, "
            f"{' and '.join(n or 'uncompressed' for n in names)}, {max(w.lossy for w in m.sent)} lossy steps so far"
        )
        pale = dense and m.source != self.strong
        kind = "cc-arrow cc-pale" if pale else "cc-arrow"
        group = self.canvas.group(kind, told, source=m.source, target=m.target, level=m.level, bytes=size)
        if pale:
            group.set("opacity", "0.3")
        cls, dash = self._style(names[0])
        (x0, y0), (x1, y1) = start, end
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        ux, uy = (x1 - x0) / length, (y1 - y0) / length
        long, half = (5, 1.8) if dense else (7, 3)
        bx, by = x1 - long * ux, y1 - long * uy
        self.canvas.line([start, (bx, by)], cls, dash=dash, width=0.8 if pale else 1.4, into=group)
        self.canvas.polygon(
            [(x1, y1), (bx - half * uy, by + half * ux), (bx + half * uy, by - half * ux)], cls, into=group
        )

    def _style(self, codec: str) -> tuple[str, str]:
        """Class and dashes of a wire's arrow."""
        return (f"cc-c{self.styles[codec]}", DASHES[self.styles[codec]]) if codec else ("cc-bare", "1.5 2")

    def _legend(self, y: float, width: float) -> float:
        s, canvas = self.s, self.canvas
        used = sorted({w.codec for m in self.messages for w in m.sent})
        for name in used:
            cls, dash = self._style(name)
            text = f"{name} = {s.codecs[name].name}" if name else f"sent as {s.dtype}"
            lines = wrap(f"{text}, {bits_per_value(s.codecs[name]):g} bits a value", width - 2 * MARGIN - 46)
            canvas.line([(MARGIN, y + 7), (MARGIN + 34, y + 7)], cls, dash=dash, width=2)
            for i, line in enumerate(lines):
                canvas.text(MARGIN + 42, y + SIZE + i * LINE, line)
            y += len(lines) * LINE + 3
        names = ", ".join(n for n in used if n)
        told = "Boxes are launches of Folds: what is read → what is made. x input, y output, t kept in float32"
        told += f", {names} wires." if names else "."
        if any(c.dense for c in self.columns):
            told += f" Where a rank sends to many, the arrows of rank {self.strong} are drawn strong."
        if not self.whole:
            shown = len(self.lanes) - 1
            told += f" {shown} of {s.world} ranks {'is' if shown == 1 else 'are'} shown."
        for line in wrap(told, width - 2 * MARGIN):
            canvas.text(MARGIN, y + SIZE, line, cls="cc-muted")
            y += LINE
        return y + 4


def lanes_of(s: Schedule, ranks: Sequence[int] | None) -> list[int]:
    """Ranks to draw: those asked for, all of up to MOST_RANKS, else the one that sends most. Raises ValueError for a rank that there is not."""
    if ranks is None:
        return list(range(s.world)) if s.world <= MOST_RANKS else [s.sent.index(max(s.sent))]
    wrong = [r for r in ranks if not 0 <= r < s.world]
    if wrong or not ranks:
        raise ValueError(f"ranks={list(ranks)}: there are ranks 0 .. {s.world - 1}")
    return sorted(set(ranks))


def space_time(s: Schedule, *, ranks: Sequence[int] | None = None, width: float = WIDTH) -> Picture:
    """Draw all sends and Folds of a call. ranks: only these, with what they exchange with the others; width: pixels, kept where text fits."""
    lanes = lanes_of(s, ranks)
    return Picture(_Diagram(s, lanes, width).draw(), space_time_text(s, lanes))


def space_time_text(s: Schedule, lanes: Sequence[int]) -> str:
    """The same in words: a line a send."""
    shown = set(lanes)
    lines = [s.headline, s.costs]
    for level in range(s.trace.levels):
        lines.append(f"step {level}")
        for m in s.trace.messages:
            if m.level == level and (m.source in shown or m.target in shown):
                names = ", ".join(dict.fromkeys(w.codec or s.dtype for w in m.sent))
                what = chunks_text((w.extent for w in m.sent), 400)
                lines.append(f"  {m.source:>3} -> {m.target:<3} {what}  {s.message_size(m):,} bytes  {names}")
    return "\n".join(lines)
