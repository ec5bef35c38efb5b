"""Where texts come from: the shipped library, COCCL_PATH, the user's folders."""

from __future__ import annotations

import os
from pathlib import Path

from ..diagnostics import Source, Span, fail

_PACKAGE = Path(__file__).resolve().parent.parent
SUFFIXES = {"algorithms": ".coll", "compressors": ".comp"}


def shipped(kind: str) -> Path:
    """The folder of `grammar`, `algorithms` or `compressors`: inside an installed wheel, or at the top of a checkout."""
    installed = _PACKAGE / "_data" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def library(kind: str) -> list[str]:
    """Names of the shipped algorithms or compressors, sorted."""
    return sorted(p.stem for p in shipped(kind).glob("*" + SUFFIXES[kind]))


def is_file(path: Path) -> bool:
    """Whether there is a file; a name that no file can have (too long, say) has none."""
    try:
        return path.is_file()
    except OSError:
        return False


def read(path: Path, shown: str | None = None, span: Span | None = None) -> Source:
    """Read a text; E102 when it is not UTF-8, E103 when it cannot be read. The shown name is the file's own unless given."""
    try:
        data = path.read_bytes()
    except OSError as e:
        fail("E103", f"cannot read `{path}`: {e.strerror or e}", span)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        fail(
            "E102",
            f"`{path}` is not UTF-8 (byte {e.start} is 0x{data[e.start]:02x})",
            span,
            help="save the file as UTF-8",
        )
    return Source(shown or path.name, text.replace("\r\n", "\n"), str(path.resolve()))


def find(target: str, kind: str, beside: str | None, span: Span | None = None) -> Path:
    """Resolve a name or path to a file of `algorithms` or `compressors`.

    Looked up beside the file that asks, then in COCCL_PATH, then in the shipped library. Raises E103, naming near misses.
    """
    suffix = SUFFIXES[kind]
    name = target if target.endswith(suffix) else target + suffix
    places: list[Path] = []
    if beside is not None:
        places.append(Path(beside).parent)
    else:
        places.append(Path.cwd())
    places += [Path(p) for p in os.environ.get("COCCL_PATH", "").split(os.pathsep) if p]
    places.append(shipped(kind))
    for place in places:
        path = place / name
        if is_file(path):
            return path
    import difflib

    known = library(kind)
    near = difflib.get_close_matches(Path(name).stem, known, 1)
    help = f"did you mean `{near[0]}`?" if near else f"shipped {kind}: {', '.join(known)}"
    fail("E103", f"no {kind[:-1]} file `{name}` found", span, help=help)
