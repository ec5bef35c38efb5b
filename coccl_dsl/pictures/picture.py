"""One finished picture: SVG, and the same in words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .colours import IN_PAGE, ON_DARK

FORMATS = (".svg", ".png")


@dataclass(frozen=True, repr=False)
class Picture:
    """svg: the whole document; text: what a terminal, a pipe or a screen reader gets instead."""

    svg: str
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_svg_(self) -> str:
        return self.svg

    @property
    def inline(self) -> str:
        """The SVG as part of an HTML page, dark where the page says that it is, with tooltips."""
        return self.svg.replace(ON_DARK, IN_PAGE)

    def png(self, scale: float = 2.0) -> bytes:
        """Rasterised, `scale` pixels for each one of the SVG. Raises RuntimeError where resvg_py is not installed."""
        try:
            import resvg_py
        except ImportError:
            raise RuntimeError("PNG needs resvg_py: pip install 'coccl-dsl[notebook]', or save as .svg") from None
        return bytes(
            resvg_py.svg_to_bytes(
                svg_string=self.svg,
                zoom=scale,
                dpi=96,
                font_files=_fonts(),
                sans_serif_family="DejaVu Sans",
                font_family="DejaVu Sans",
            )
        )

    def save(self, path: str | Path) -> Path:
        """Write SVG or PNG by the file's ending. Raises ValueError for any other ending."""
        path = Path(path)
        if path.suffix not in FORMATS:
            raise ValueError(f"{path.name}: pictures are written as {' or '.join(FORMATS)}")
        data = self.svg.encode() if path.suffix == ".svg" else self.png()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path


def _fonts() -> list[str]:
    """DejaVu Sans as matplotlib ships it: a machine may have no fonts at all, and then text would vanish."""
    from importlib.util import find_spec

    spec = find_spec("matplotlib")
    if spec is None or spec.origin is None:
        return []
    return [str(f) for f in sorted((Path(spec.origin).parent / "mpl-data/fonts/ttf").glob("DejaVuSans*.ttf"))]
