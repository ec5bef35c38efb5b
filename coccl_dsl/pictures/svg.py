"""A drawing surface: shapes and text with known extents, written as SVG by the standard library's XML."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree as ET

from .colours import STYLE

SIZE = 11
LINE = 14

# Advance widths in ems of DejaVu Sans, the widest face that a page is likely to fall back to: what fits in it fits in the others.
_WIDTHS = {
    **dict.fromkeys("ijlI|'", 0.3),
    **dict.fromkeys(" .,:;/ft()[]r-J", 0.41),
    **dict.fromkeys("mM%W@w", 1.0),
    **dict.fromkeys("+=<>→×·≤…", 0.84),
    **dict.fromkeys("ABCDGHNOQRUKVXZ", 0.79),
}


def text_width(text: str, size: float = SIZE) -> float:
    """An upper bound of a text's width in pixels."""
    return size * sum(_WIDTHS.get(c, 0.64) for c in text)


def wrap(text: str, width: float, size: float = SIZE) -> list[str]:
    """Lines of at most `width` pixels, broken at spaces; a longer word has a line of its own."""
    lines: list[str] = []
    for word in text.split(" "):
        if lines and text_width(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


TITLE = 13
BOLD = 1.14  # how much wider bold letters are


def title_lines(text: str, width: float) -> list[str]:
    """A bold title of TITLE pixels, in lines."""
    return wrap(text, width, TITLE * BOLD)


def number(v: float) -> str:
    return f"{v:.1f}".rstrip("0").rstrip(".")


class Canvas:
    """Collects shapes; `svg` closes the document at the size that is known by then."""

    def __init__(self, label: str):
        self.root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "aria-label": label})
        ET.SubElement(self.root, "style").text = STYLE
        self.paper = ET.SubElement(self.root, "rect", {"class": "cc-paper", "width": "100%", "height": "100%"})
        self.at = self.root

    def group(self, cls: str, title: str, **data: object) -> ET.Element:
        """A group with a tooltip; give it to the shapes as `into`."""
        made = ET.SubElement(self.root, "g", {"class": cls, **{f"data-{k}": str(v) for k, v in data.items()}})
        ET.SubElement(made, "title").text = title
        return made

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        cls: str = "cc-text",
        size: float = SIZE,
        anchor: str = "start",
        bold: bool = False,
        into: ET.Element | None = None,
    ) -> None:
        """One line; y is the baseline."""
        where = {"x": number(x), "y": number(y), "class": cls, "font-size": number(size)}
        if anchor != "start":
            where["text-anchor"] = anchor
        if bold:
            where["font-weight"] = "bold"
        ET.SubElement(self.root if into is None else into, "text", where).text = text

    def rect(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        cls: str,
        *,
        radius: float = 0,
        opacity: float = 1,
        into: ET.Element | None = None,
    ) -> None:
        where = {"x": number(x), "y": number(y), "width": number(w), "height": number(h), "class": cls}
        if radius:
            where["rx"] = number(radius)
        if opacity < 1:
            where["fill-opacity"] = f"{opacity:g}"
        ET.SubElement(self.root if into is None else into, "rect", where)

    def line(
        self,
        points: Iterable[tuple[float, float]],
        cls: str,
        *,
        dash: str = "",
        width: float = 1,
        into: ET.Element | None = None,
    ) -> None:
        path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
        where = {"d": path, "class": cls, "stroke-width": number(width), "fill": "none"}
        if dash:
            where["stroke-dasharray"] = dash
        ET.SubElement(self.root if into is None else into, "path", where)

    def polygon(self, points: Iterable[tuple[float, float]], cls: str, *, into: ET.Element | None = None) -> None:
        where = {"points": " ".join(f"{number(x)},{number(y)}" for x, y in points), "class": cls}
        ET.SubElement(self.root if into is None else into, "polygon", where)

    def svg(self, width: float, height: float) -> str:
        w, h = number(width), number(height)
        self.root.attrib |= {"width": w, "height": h, "viewBox": f"0 0 {w} {h}"}
        return ET.tostring(self.root, encoding="unicode")
