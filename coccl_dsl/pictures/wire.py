"""A compressor's wire, to scale: one frame beside the tensor that it stands for, and one group bit by bit."""

from __future__ import annotations

from ..wire.codec import FRAME, TYPES, Codec
from ..wire.layout import bits_per_value, frame_runs
from .colours import SERIES
from .picture import Picture
from .spacetime import MARGIN, bytes_text
from .svg import LINE, SIZE, TITLE, Canvas, text_width, title_lines, wrap

WIDTH = 720
BAR = 22


def wire_layout(codec: Codec) -> Picture:
    """Where each byte of a frame of 32,768 values lies, at the scale of the tensor's own bytes; and the bits of one group."""
    return Picture(_draw(codec), wire_text(codec))


def _named(codec: Codec) -> dict[str, str]:
    """Field -> its type and how many there are."""
    found = {}
    for f in codec.fields:
        found[f.name] = f"{f.type}[{f.length}] a group" if f.per == "array" else f"{f.type} a {f.per}"
    return found | {"version": "u32 a frame"}


def group_bits(codec: Codec) -> list[tuple[str, int]]:
    """Bits that one group of values takes in each field; a frame's own numbers are in no group."""
    return [(f.name, f.bits * (f.length if f.per == "array" else 1)) for f in codec.fields if f.per != "frame"]


def wire_text(codec: Codec) -> str:
    runs, size = frame_runs(codec, FRAME)
    names = _named(codec)
    lines = [f"{codec.name}   {codec.dtype} tensors   {bits_per_value(codec):g} bits a value, groups of {codec.group}"]
    lines += [f"  {r.offset:>7,}  {r.bytes:>7,} bytes  {r.field:<10} {names[r.field]}" for r in runs]
    lines.append(
        f"  {size:>7,}  bytes a frame of {FRAME:,} values; {FRAME * TYPES[codec.dtype][0] // 8:,} in {codec.dtype}"
    )
    lines += [f"  claim {c.text}" for c in codec.claims]
    return "\n".join(lines)


def _draw(codec: Codec) -> str:
    c = Canvas(wire_text(codec))
    runs, size = frame_runs(codec, FRAME)
    plain = FRAME * TYPES[codec.dtype][0] // 8
    names = _named(codec)
    y = float(MARGIN + SIZE)
    for line in title_lines(codec.name, WIDTH - 2 * MARGIN):
        c.text(MARGIN, y, line, bold=True, size=TITLE)
        y += LINE + 2
    told = f"{bits_per_value(codec):g} bits a value, {codec.dtype} tensors, groups of {codec.group}"
    c.text(MARGIN, y, told + (f", in the Hadamard basis of {codec.basis}" if codec.basis else ""), cls="cc-muted")
    y += 12
    left = MARGIN + max(text_width(codec.dtype), text_width("group"), text_width("wire")) + 12
    room = WIDTH - left - MARGIN
    scale = room / max(plain, size)
    classes = {r.field: f"cc-c{i}" if i < len(SERIES) else "cc-bare" for i, r in enumerate(runs)}
    c.text(left, y + SIZE, f"a frame of {FRAME:,} values: {size:,} bytes, {plain:,} in {codec.dtype}", cls="cc-muted")
    y += LINE + 6
    c.text(MARGIN, y + 15, codec.dtype)
    c.rect(left, y, plain * scale, BAR, "cc-box")
    y += BAR + 5
    c.text(MARGIN, y + 15, "wire")
    for r in runs:
        _part(
            c,
            r.field,
            classes[r.field],
            left + r.offset * scale,
            y,
            r.bytes * scale,
            f"{r.field}: {r.bytes:,} bytes at {r.offset:,}",
        )
    y += BAR + 12
    bits = group_bits(codec)
    if bits:
        total = sum(b for _, b in bits)
        what = f"a group of {codec.group} value{'s' * (codec.group > 1)}: {total:,} bits"
        c.text(left, y + SIZE, what, cls="cc-muted")
        y += LINE + 6
        c.text(MARGIN, y + 15, "group")
        x = left
        for name, count in bits:
            w = count * room / total
            _part(c, name, classes[name], x, y, w, f"{name}: {count:,} bits")
            x += w
        y += BAR + 12
    for r in runs:
        c.rect(left, y + 1, 12, 11, classes[r.field], opacity=0.45)
        c.text(left + 20, y + SIZE, f"{r.field}: {names[r.field]}, {bytes_text(r.bytes)} at {r.offset:,}")
        y += LINE + 2
    for claim in codec.claims:
        for i, line in enumerate(wrap(f"claim {claim.text}", room)):
            c.text(left + (12 if i else 0), y + SIZE, line, cls="cc-muted")
            y += LINE
    return c.svg(WIDTH, y + MARGIN)


def _part(c: Canvas, name: str, cls: str, x: float, y: float, w: float, told: str) -> None:
    group = c.group("cc-field", told, field=name)
    c.rect(x, y, max(w, 1), BAR, cls, into=group, opacity=0.45)
    if text_width(name) + 6 <= w:
        c.text(x + w / 2, y + 15, name, anchor="middle", into=group)
