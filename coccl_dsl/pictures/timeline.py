"""When a rank's streams are busy, as the model of `plan/model.py` has it: launches on one stream, messages on another, slice behind slice.

    a launch    Links.launch seconds, on the compute stream; and, where a memory rate is given, the bytes that its Folds read and write
    a level     the model's time of a slice's messages, on the send stream; the slice's next launch waits for it
    order       that of `runtime/transports/base.py`: slice k + 1 starts one level behind slice k

With one slice and no memory rate the end is the time that `coccl-compile --explain` prints. The critical path is what the end waited for, back to the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..plan.cut import cut, piece
from ..plan.model import GPU, Link, Links
from ..plan.ops import Exchange, Fold, Launch, Plan
from ..plan.show import COUNT, fitting, headline
from ..wire.codec import TYPES
from ..wire.layout import wire_bytes
from .colours import SERIES
from .picture import Picture
from .schedule import Schedule
from .spacetime import MARGIN, WIDTH, formula
from .svg import LINE, SIZE, TITLE, Canvas, text_width, title_lines, wrap

STREAMS = ("compute", "send")


@dataclass(frozen=True, eq=False)
class Block:
    """Time that one stream is busy, in seconds from the start. cause: the block that it waited for."""

    stream: str
    slice: int
    label: str
    start: float
    end: float
    cause: Block | None


@dataclass(frozen=True)
class Timeline:
    """What one rank's streams do in a call."""

    blocks: tuple[Block, ...]

    @property
    def seconds(self) -> float:
        return max((b.end for b in self.blocks), default=0.0)

    @property
    def critical(self) -> set[Block]:
        at = max(self.blocks, key=lambda b: b.end, default=None)
        found = set()
        while at is not None:
            found.add(at)
            at = at.cause
        return found


def simulate_streams(
    plan: Plan, slices: int, level: Callable[[int, int], float], launch: Callable[[Launch, int], float]
) -> Timeline:
    """Run the plan's launches and exchanges against the model. level(i, k): seconds of level i of slice k; launch(l, k): of a launch."""
    blocks: list[Block] = []
    free: dict[str, Block | None] = dict.fromkeys(STREAMS)
    last: list[Block | None] = [None] * slices

    def run(stream: str, k: int, label: str, seconds: float) -> None:
        cause = max((b for b in (free[stream], last[k]) if b is not None), key=lambda b: b.end, default=None)
        start = cause.end if cause is not None else 0.0
        block = Block(stream, k, label, start, start + seconds, cause)
        blocks.append(block)
        free[stream] = last[k] = block

    def steps(k: int) -> Iterator[None]:
        for s in plan.steps:
            if isinstance(s, Launch):
                run("compute", k, formula(s.signature), launch(s, k))
            elif isinstance(s, Exchange):
                run("send", k, f"step {s.level}", level(s.level, k))
                yield

    running = {k: steps(k) for k in range(slices)}
    started = 0
    while running:
        started += 1
        for k, own in [(k, own) for k, own in running.items() if k < started]:
            if next(own, END) is END:
                del running[k]
    return Timeline(tuple(blocks))


END = object()


def launch_time(
    plan: Plan, lengths: Mapping[int, int], slices: int, links: Links, memory: float | None
) -> Callable[[Launch, int], float]:
    """Seconds of a launch of slice k. memory: bytes a second that kernels read and write, None for no time at all."""

    def seconds(launch: Launch, k: int) -> float:
        if memory is None:
            return links.launch
        moved = sum(fold_bytes(plan, f, piece(lengths[f.extent], k, slices).length) for f in launch.folds)
        return links.launch + moved / memory

    return seconds


def fold_bytes(plan: Plan, f: Fold, length: int) -> int:
    """Bytes that a Fold on `length` elements reads and writes."""
    item = TYPES[plan.dtype][0] // 8
    dense = [d.role for d in f.dense] + [s.place.role for s in f.sinks]
    wires = [o.wire for o in f.opened] + [f.wire] * (f.wire is not None)
    moved = sum(4 if role == "scratch" else item for role in dense) * length
    return moved + sum(wire_bytes(plan.codecs[plan.wires[w].codec], length) for w in wires if w is not None)


def own_level(plan: Plan, count: int, slices: int, links: Links) -> Callable[[int, int], float]:
    """Seconds of a level as this rank alone sees it: its own messages, on the slowest axis. Equal to the model's where all ranks are alike."""
    lengths = cut(plan, count).lengths
    exchanges = {s.level: s for s in plan.steps if isinstance(s, Exchange)}
    mesh = [size for _, size in plan.mesh]

    def across(peer: int) -> bool:
        inner = plan.world // mesh[0]
        return len(mesh) > 1 and peer // inner != plan.rank // inner

    def size(w: int, k: int) -> int:
        info = plan.wires[w]
        return wire_bytes(plan.codecs[info.codec], piece(lengths[info.extent], k, slices).length)

    def level(i: int, k: int) -> float:
        worst = 0.0
        for transfers in (exchanges[i].sends, exchanges[i].recvs):
            for far, link in ((False, links.inside), (True, links.across)):
                here = [t for t in transfers if across(t.peer) == far]
                if here:
                    moved = sum(size(w, k) for t in here for w in t.wires)
                    worst = max(worst, link.latency + len(here) * link.message + moved / link.bandwidth)
        return worst

    return level


def timeline(
    of: Schedule | Plan,
    *,
    rank: int = 0,
    slices: int = 1,
    links: Links = GPU,
    memory: float | None = None,
    count: int = COUNT,
    width: float = WIDTH,
) -> Picture:
    """The streams of one rank through one call, the critical path outlined.

    of      a Schedule (a level takes what its busiest rank takes), or one rank's Plan (what that rank's own messages take)
    slices  slices in flight; links: the model's links; count: elements of the input, for a Plan
    memory  bytes a second that kernels read and write, such as 4.2e12 on an H200 (facts/measured.md); None: arithmetic takes no time
    """
    if slices < 1:
        raise ValueError(f"slices={slices}: there is at least one")
    if isinstance(of, Schedule):
        if not 0 <= rank < of.world:
            raise ValueError(f"rank={rank}: there are ranks 0 .. {of.world - 1}")
        plan, count, lengths = of.plans[rank], of.count, of.lengths
        times = [of.level_times(links, k, slices) for k in range(slices)]
        level: Callable[[int, int], float] = lambda i, k: times[k][i].seconds  # noqa: E731
    else:
        plan, count = of, fitting(of, count)
        lengths = cut(plan, count).lengths
        level = own_level(plan, count, slices, links)
    made = simulate_streams(plan, slices, level, launch_time(plan, lengths, slices, links, memory))
    title = f"{headline(plan)}   {count:,} elements"
    return Picture(
        _draw(made, title, slices, model_text(links, memory), width), _text(made, title, model_text(links, memory))
    )


def predicted_time(s: Schedule, links: Links, slices: int = 1) -> float:
    """Seconds until the last rank is done."""
    times = [s.level_times(links, k, slices) for k in range(slices)]
    return max(
        simulate_streams(p, slices, lambda i, k: times[k][i].seconds, lambda launch, k: links.launch).seconds
        for p in s.plans
    )


def microseconds(seconds: float) -> str:
    us = 1e6 * seconds
    return f"{us:,.0f} us" if us >= 100 else f"{us:.3g} us"


def _link_text(link: Link) -> str:
    return f"{link.bandwidth / 1e9:g} GB/s and {1e6 * link.latency:g} us"


def model_text(links: Links, memory: float | None) -> str:
    return (
        f"Predicted, not measured: {_link_text(links.inside)} inside a node, {_link_text(links.across)} across, "
        f"{1e6 * links.launch:g} us a launch, "
        + (f"{memory / 1e12:g} TB/s for what kernels read and write." if memory else "no time for arithmetic.")
    )


def _ticks(seconds: float) -> list[float]:
    """Five to ten round numbers of microseconds from 0 on."""
    us = max(1e6 * seconds, 1e-3)
    step = 10.0 ** math.floor(math.log10(us))
    step = next(step * f for f in (0.1, 0.2, 0.5, 1.0) if us / (step * f) <= 10)
    return [i * step for i in range(int(us / step) + 1)]


def _draw(t: Timeline, title: str, slices: int, model: str, width: float) -> str:
    c = Canvas(f"{title}: {microseconds(t.seconds)}")
    left, right = MARGIN + text_width("compute") + 12, width - MARGIN - 24
    y = float(MARGIN + SIZE)
    for line in title_lines(title.replace("   ", ", "), width - 2 * MARGIN):
        c.text(MARGIN, y, line, bold=True, size=TITLE)
        y += LINE + 2
    c.text(MARGIN, y, f"{microseconds(t.seconds)} a call, {slices} slice{'s' * (slices > 1)}", cls="cc-muted")
    y += 26
    tall, gap = 34, 14
    scale = (right - left) / max(t.seconds, 1e-12)
    bottom = y + len(STREAMS) * (tall + gap)
    for tick in _ticks(t.seconds):
        x = left + tick * 1e-6 * scale
        c.line([(x, y - 6), (x, bottom)], "cc-rule")
        c.text(x, y - 10, f"{tick:g}", anchor="middle", cls="cc-muted")
    c.text(MARGIN, y - 10, "time, us", cls="cc-muted")
    critical = t.critical
    rows = {name: y + i * (tall + gap) for i, name in enumerate(STREAMS)}
    for name, top in rows.items():
        c.text(MARGIN, top + tall / 2 + 4, name)
    for b in sorted(t.blocks, key=lambda b: b in critical):
        x, w, top = left + b.start * scale, (b.end - b.start) * scale, rows[b.stream]
        told = f"{b.label}, slice {b.slice}: {microseconds(b.start)} to {microseconds(b.end)}"
        kind = "cc-block cc-on-critical-path" if b in critical else "cc-block"
        group = c.group(kind, told, stream=b.stream, slice=b.slice)
        c.rect(x, top, max(w, 0.5), tall, "cc-paper", into=group)
        c.rect(x, top, max(w, 0.5), tall, f"cc-c{b.slice % len(SERIES)}", into=group, opacity=0.28)
        if b in critical:
            c.rect(x, top, max(w, 0.5), tall, "cc-critical", into=group)
        words = [b.label, f"slice {b.slice}"] if slices > 1 else [b.label]
        if all(text_width(word) + 6 <= w for word in words):
            for i, word in enumerate(words):
                c.text(
                    x + w / 2, top + tall / 2 + 4 + (i - (len(words) - 1) / 2) * LINE, word, anchor="middle", into=group
                )
    y = bottom + 6
    x = float(MARGIN)
    for k in range(slices if slices > 1 else 0):
        c.rect(x, y, 22, 11, f"cc-c{k % len(SERIES)}", opacity=0.28)
        c.text(x + 28, y + 10, f"slice {k}")
        x += 46 + text_width(f"slice {k}")
        if x > right - 80 and k < slices - 1:
            x, y = MARGIN, y + 18
    if x + 240 > right:
        x, y = MARGIN, y + 18
    c.rect(x + 1, y, 21, 11, "cc-critical")
    c.text(x + 28, y + 10, "on the critical path")
    y += 20
    for line in wrap(model, width - 2 * MARGIN):
        c.text(MARGIN, y + SIZE, line, cls="cc-muted")
        y += LINE
    return c.svg(width, y + MARGIN)


def _text(t: Timeline, title: str, model: str) -> str:
    critical = t.critical
    lines = [title, f"{microseconds(t.seconds)} a call; * is on the critical path"]
    for b in t.blocks:
        star = "*" if b in critical else " "
        span = f"{1e6 * b.start:10.1f} .. {1e6 * b.end:10.1f} us"
        lines.append(f"  {star} {span}  slice {b.slice}  {b.stream:<8} {b.label.replace('→', '->').replace('×', 'x')}")
    return "\n".join([*lines, model])
