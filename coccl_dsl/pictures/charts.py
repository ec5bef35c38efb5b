"""Charts of numbers: bytes a link, errors, costs against ranks, time against size. Each is a Picture with its numbers as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..lang.files import library
from ..pipeline import Collective, load
from ..plan.model import GPU, Links
from .colours import LIGHT, SERIES
from .figures import MARKERS, figure, picture
from .picture import Picture
from .schedule import Schedule, schedule
from .spacetime import bytes_text
from .timeline import microseconds, predicted_time

if TYPE_CHECKING:
    import torch

    from ..bench.rows import Row

Named = Collective | str


def _loaded(collectives: Named | Sequence[Named]) -> list[Collective]:
    many = [collectives] if isinstance(collectives, str | Collective) else list(collectives)
    return [load(c) if isinstance(c, str) else c for c in many]


def _line(i: int) -> dict[str, Any]:
    styles = ("-", (0, (5, 3)), (0, (2, 2)), "-.")  # where lines lie on each other, all are seen
    return {
        "color": SERIES[i % len(SERIES)],
        "marker": MARKERS[i % len(MARKERS)],
        "linestyle": styles[i % len(styles)],
        "markersize": 7 - min(i, 3),
    }


# ---------------------------------------------------------------- links


def link_bytes(s: Schedule) -> Picture:
    """Bytes that a call moves over each link, from rank (down) to rank (across)."""
    n = s.world
    moved = np.zeros((n, n))
    for m in s.trace.messages:
        moved[m.source, m.target] += s.message_size(m)
    lines = [f"{s.headline}: bytes from rank (down) to rank (across)", "      " + "".join(f"{r:>12}" for r in range(n))]
    lines += [f"{r:>6}" + "".join(f"{int(v):>12,}" for v in row) for r, row in enumerate(moved)]
    with figure(460, 380) as (made, (axis,)):
        unit, name = (2**20, "MiB") if moved.max() >= 2**20 else (2**10, "KiB")
        shown = axis.imshow(np.ma.masked_equal(moved, 0) / unit, cmap="cividis", vmin=0)
        axis.grid(False)
        axis.set(xlabel="to rank", ylabel="from rank", title=f"{s.name}: sent in a call")
        ticks = range(n) if n <= 16 else range(0, n, n // 8)
        axis.set_xticks(list(ticks))
        axis.set_yticks(list(ticks))
        inner = n // s.trace.sizes[0] if s.axes else n
        for edge in range(inner, n, inner):
            axis.axhline(edge - 0.5, color=LIGHT.edge, linewidth=1)
            axis.axvline(edge - 0.5, color=LIGHT.edge, linewidth=1)
        for (i, j), v in np.ndenumerate(moved) if n <= 8 else ():
            if v:
                dark = v < 0.6 * moved.max()
                axis.text(j, i, f"{v / unit:.3g}", ha="center", va="center", color="#fefefe" if dark else "#010101")
        made.colorbar(shown, ax=axis, label=f"{name} a call")
        return picture(made, "\n".join(lines))


# ---------------------------------------------------------------- errors


def error_per_hop(
    collectives: Named | Sequence[Named],
    tensors: Sequence[torch.Tensor],
    *,
    mesh: Mapping[str, int] | None = None,
    **compressors: Any,
) -> Picture:
    """The worst relative error among the wires that arrive in each step, on real data, one tensor a rank. The last point is the result's."""
    from .errors import errors

    lines = ["worst relative error of what arrives, step by step; the last is the result's"]
    with figure() as (made, (axis,)):
        for i, c in enumerate(_loaded(collectives)):
            found = errors(c, tensors, mesh=mesh, **compressors)
            worst: dict[int, float] = {}
            for hop in found.hops:
                worst[hop.level] = max(worst.get(hop.level, 0.0), hop.error)
            ys = [worst[level] for level in sorted(worst)] + [found.end]
            axis.plot([*sorted(worst), max(worst) + 1], ys, label=c.name, **_line(i))
            lines.append(f"  {c.name:<20} " + " ".join(f"{y:.2e}" for y in ys))
        axis.set(xlabel="step (the last point: the result)", ylabel="relative error (rms / rms)")
        axis.set_ylim(0, 1.08 * max(axis.dataLim.y1, 1e-12))
        axis.set_title(f"error on the way, {len(tensors)} ranks")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend()
        return picture(made, "\n".join(lines))


def error_histogram(
    collectives: Named | Sequence[Named],
    tensors: Sequence[torch.Tensor],
    *,
    mesh: Mapping[str, int] | None = None,
    **compressors: Any,
) -> Picture:
    """How often results are off by how much, in units of the exact result's root mean square, on real data, one tensor a rank."""
    from .errors import errors

    kept = [(c.name, errors(c, tensors, mesh=mesh, **compressors)) for c in _loaded(collectives)]
    lines = ["errors of the results in units of the exact result's rms: rms, 99th percentile, largest"]
    spread = max(float(e.scaled.abs().kthvalue(max(1, int(0.999 * e.scaled.numel())))[0]) for _, e in kept) or 1e-12
    with figure() as (made, (axis,)):
        for i, (name, e) in enumerate(kept):
            off = e.scaled.abs()
            counts, edges = np.histogram(e.scaled.numpy(), bins=121, range=(-spread, spread))
            axis.stairs(counts / e.scaled.numel(), edges, color=SERIES[i % len(SERIES)], label=name, linewidth=1.6)
            tail = float(off.kthvalue(max(1, int(0.99 * off.numel())))[0])
            lines.append(f"  {name:<20} {e.end:.2e} {tail:.2e} {float(off.max()):.2e}")
        axis.set(xlabel="error / rms of the exact result", ylabel="share of elements a bin", yscale="log")
        axis.set_title(f"errors of the results, {len(tensors)} ranks")
        axis.legend()
        return picture(made, "\n".join(lines))


def error_against_bits(x: torch.Tensor | None = None, compressors: Sequence[str] | None = None) -> Picture:
    """Relative error of one round trip against bits a value. x: the data, else a standard normal distribution; compressors: unless given, all
    shipped ones that keep no state, but raw. On the front, none has fewer bits and less error."""
    points = _round_trips(x, compressors)
    front = pareto([(bits, error) for _, bits, error in points])
    order = sorted(range(len(points)), key=lambda i: points[i][1:])
    lines = ["bits a value, relative error of a round trip; * is on the Pareto front"]
    lines += [
        f"  {'*' if i in front else ' '} {points[i][0]:<28} {points[i][1]:8.4f} {points[i][2]:.3e}" for i in order
    ]
    floor = min((e for _, _, e in points if e), default=1.0) / 4
    with figure(760, 480) as (made, (axis,)):
        xs, ys = [p[1] for p in points], [p[2] or floor for p in points]
        rest = [i for i in range(len(points)) if i not in front]
        axis.plot(
            [xs[i] for i in rest], [ys[i] for i in rest], "o", color=SERIES[0], fillstyle="none", label="compressor"
        )
        on = [i for i in order if i in front]
        axis.plot([xs[i] for i in on], [ys[i] for i in on], "s--", color=SERIES[1], linewidth=1, label="Pareto front")
        what = "a standard normal distribution" if x is None else f"{x.numel():,} values of the data"
        axis.set(xscale="log", yscale="log", xlabel="bits a value on the wire", ylabel="relative error (rms / rms)")
        axis.set_xticks([b for b in (0.25, 0.5, 1, 2, 4, 8, 16, 32) if min(xs) <= 2 * b and b <= 2 * max(xs)])
        axis.xaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.set_title(f"one round trip of {what}")
        if any(not p[2] for p in points):
            axis.axhline(floor, color=LIGHT.edge, linewidth=0.8, linestyle=":")
            axis.text(min(xs), floor * 1.08, "exact", va="bottom", color=LIGHT.muted)
        axis.margins(0.08, 0.08)
        axis.legend(loc="upper right")
        _label(made, axis, [(xs[i], ys[i], points[i][0].split("(")[0], i in front) for i in order])
        return picture(made, "\n".join(lines))


def _round_trips(x: torch.Tensor | None, compressors: Sequence[str] | None) -> list[tuple[str, float, float]]:
    """(compressor, bits, relative error)."""
    import torch

    from ..cli.progress import track
    from ..codegen.codec_api import codec
    from ..diagnostics import CompileError
    from ..runtime.dtypes import dtype_name
    from ..wire.layout import bits_per_value
    from .errors import relative

    data = x if x is not None else torch.randn(1 << 16, generator=torch.Generator().manual_seed(0))
    found = []
    names = list(compressors) if compressors is not None else [n for n in library("compressors") if n != "raw"]
    for name in track(names, "round trips"):
        try:
            q = codec(name)
            bits = bits_per_value(q.compiled(dtype_name(data.dtype)))
            found.append((name, bits, relative(q.roundtrip(data), data)))
        except (CompileError, ValueError, TypeError):
            if compressors is not None:
                raise
    return found


def pareto(points: Sequence[tuple[float, float]]) -> set[int]:
    """Indices of the points that no other beats or equals in both numbers, being better in one."""
    return {i for i, p in enumerate(points) if not any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in points)}


def _label(made: Any, axis: Any, points: Sequence[tuple[float, float, str, bool]]) -> None:
    """Names beside their points, each where it covers no point and no other name; a name without a place is left out of the picture (it is in
    the text)."""
    made.draw_without_rendering()
    made.set_layout_engine("none")
    renderer = made.canvas.get_renderer()
    at = axis.transData.transform([(x, y) for x, y, _, _ in points])
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in at]
    legend = axis.get_legend().get_window_extent(renderer)
    taken.append((legend.x0, legend.y0, legend.x1, legend.y1))
    taken += [(b.x0, b.y0, b.x1, b.y1) for b in (t.get_window_extent(renderer) for t in axis.texts)]
    front = sorted((x, y) for (x, y), p in zip(at, points, strict=True) if p[3])
    for a, b in pairwise(front):
        taken += _along(a, b)
    inside = axis.get_window_extent(renderer)
    scale = 72 / made.dpi
    for (px, py), (x, y, name, strong) in sorted(zip(at, points, strict=True), key=lambda p: not p[1][3]):
        text = axis.annotate(
            name, (x, y), (0, 0), textcoords="offset points", fontweight="bold" if strong else "normal"
        )
        own = text.get_window_extent(renderer)
        w, h = own.width, own.height
        for dx, dy in _around(w, h):
            box = (px + dx, py + dy, px + dx + w, py + dy + h)
            out = box[0] < inside.x0 or box[2] > inside.x1 or box[1] < inside.y0 or box[3] > inside.y1
            if not out and not any(box[0] < t[2] and t[0] < box[2] and box[1] < t[3] and t[1] < box[3] for t in taken):
                text.set_position((dx * scale, dy * scale))
                text.set_verticalalignment("bottom")
                taken.append(box)
                if max(abs(dx + w / 2) - w / 2, abs(dy + h / 2) - h / 2) > 10:
                    nearest = (min(max(px, box[0]), box[2]), min(max(py, box[1]), box[3]))
                    (x0, y0), (x1, y1) = axis.transData.inverted().transform([(px, py), nearest])
                    axis.plot([x0, x1], [y0, y1], color=LIGHT.edge, linewidth=0.7, scalex=False, scaley=False)
                    taken += _along((px, py), nearest)
                break
        else:
            text.remove()


def _along(a: tuple[float, float], b: tuple[float, float]) -> list[tuple[float, float, float, float]]:
    """Small boxes on a line of pixels, for what must not lie on it."""
    steps = max(1, int(max(abs(b[0] - a[0]), abs(b[1] - a[1])) / 4))
    points = [(a[0] + (b[0] - a[0]) * i / steps, a[1] + (b[1] - a[1]) * i / steps) for i in range(steps + 1)]
    return [(x - 1, y - 1, x + 1, y + 1) for x, y in points]


def _around(w: float, h: float) -> list[tuple[float, float]]:
    """Offsets in pixels of a text's lower left corner from its point, the nearest first."""
    found = [(6, -h / 2), (-w - 6, -h / 2), (-w / 2, 6), (-w / 2, -h - 6)]
    for far in (6, 14, 24, 36):
        found += [
            (far, far / 2),
            (far, -h - far / 2),
            (-w - far, far / 2),
            (-w - far, -h - far / 2),
            (-w / 2, far),
            (-w / 2, -h - far),
        ]
    return found


# ---------------------------------------------------------------- costs


def cost_against_ranks(
    collectives: Sequence[Named], ranks: Sequence[int], *, links: Links = GPU, count: int = 1 << 22, **compressors: Any
) -> Picture:
    """Lossy steps, bytes that the busiest rank sends, and predicted time, for worlds of each number of ranks. Collectives over `ranks` only."""
    from ..cli.progress import track

    panels = ("lossy steps on the worst path", "MiB sent by the busiest rank", "predicted time, us")
    lines = [f"{count:,} elements: ranks, then lossy steps, bytes sent, predicted time"]
    with figure(900, 300, 3) as (made, axes):
        for i, c in enumerate(track(_loaded(collectives), "costs")):
            made_for = [schedule(c, n, count=count, **compressors) for n in ranks]
            lossy = [s.trace.lossy for s in made_for]
            sent = [max(s.sent) / 2**20 for s in made_for]
            times = [predicted_time(s, links) for s in made_for]
            for axis, ys in zip(axes, (lossy, sent, [1e6 * t for t in times]), strict=True):
                axis.plot(ranks, ys, label=c.name, **_line(i))
            lines.append(f"  {c.name}")
            for n, a, b, t in zip(ranks, lossy, sent, times, strict=True):
                lines.append(f"    {n:>4} {a:>4} {bytes_text(b * 2**20):>12} {microseconds(t):>12}")
        for axis, name in zip(axes, panels, strict=True):
            axis.set(xlabel="ranks", ylabel=name)
            axis.set_ylim(0, 1.08 * max(axis.dataLim.y1, 1e-12))
            axis.xaxis.get_major_locator().set_params(integer=True)
        axes[0].legend()
        return picture(made, "\n".join(lines))


def time_against_size(rows: Sequence[Row], **only: str) -> Picture:
    """Measured time against size, ours and NCCL's, and the wire's ceiling, one panel a (collective, dtype, mode). only: rows with these
    values, such as collective="all_reduce"."""
    from ..bench.plot import draw, legend, panels_of

    kept = [r for r in rows if all(getattr(r, k) == v for k, v in only.items())]
    panels = panels_of(kept)
    if not panels:
        raise ValueError(f"no rows{' with ' + str(only) if only else ''}: there is nothing to draw")
    across = min(len(panels), 3)
    with figure(320 * max(across, 2), 340, across) as (made, axes):
        draw(axes, kept, panels[:across])
        legend(made, axes)
        lines = ["collective dtype mode compressor size, us, NCCL us, ratio"]
        lines += [
            f"  {r.collective} {r.dtype} {r.mode} {r.compressor:<6} {bytes_text(r.size):>9} {r.us:>8.0f} {r.nccl_us:>8.0f} {r.ratio:>5.2f}"
            for r in kept
            if not r.error
        ]
        return picture(made, "\n".join(lines))
