"""The parts of a compressor definition by kind, each checked for being there as often as it may."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field

from ..diagnostics import Sink, Span, fail
from ..lang import ast
from .builtins import WORDS
from .codec import DTYPES, FRAME, TYPES, Field

# Names that compressor texts are given.
_SPECIAL = ("decompressed", "tiny", *WORDS)


@dataclass
class Parts:
    """A definition's parts by kind, each checked for being there once."""

    basis: ast.Basis | None = None
    states: list[ast.State] = field(default_factory=list)
    wire: ast.WireBlock | None = None
    nonfinite: ast.NonFinite | None = None
    dtypes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    flags: list[ast.Flag] = field(default_factory=list)
    compress: ast.Body | None = None
    decompress: ast.Body | None = None
    updates: dict[str, ast.Body] = field(default_factory=dict)
    claims: list[ast.Claim] = field(default_factory=list)


def sort_parts(d: ast.CompressorDef) -> Parts:
    """Raises E202, E404, E406 and E407, all that are found at once."""
    parts, found = Parts(), Sink()

    def once(name: str, node: ast.Part) -> None:
        first = getattr(parts, name)
        if first is not None:
            found.error("E406", f"`{d.name}` has two `{name}` parts", node.span, also=((first.span, "the first"),))
        else:
            setattr(parts, name, node)

    for p in d.parts:
        match p:
            case ast.Basis():
                once("basis", p)
            case ast.State():
                parts.states.append(p)
            case ast.WireBlock():
                once("wire", p)
            case ast.NonFinite():
                once("nonfinite", p)
            case ast.Dtypes():
                for t in p.dtypes:
                    if t not in DTYPES:
                        message = f"`{t}` is no dtype of a tensor; they are {', '.join(DTYPES)}"
                        found.error("E407", message, p.span)
                parts.dtypes[p.what] = (*parts.dtypes.get(p.what, ()), *p.dtypes)
            case ast.Flag():
                parts.flags.append(p)
            case ast.Body(kind="update"):
                scope = str(p.scope)
                if scope in parts.updates:
                    also = ((parts.updates[scope].span, "the first"),)
                    found.error("E406", f"`{d.name}` has two `update {scope}` parts", p.span, also=also)
                parts.updates[scope] = p
            case ast.Body():
                once(p.kind, p)
            case ast.Claim():
                parts.claims.append(p)
    missing = [f"`{name}`" for name in ("wire", "compress", "decompress") if getattr(parts, name) is None]
    if missing:
        found.error("E406", f"compressor `{d.name}` has no {' and no '.join(missing)}", d.name_span)
    if parts.nonfinite is None and parts.wire is not None and not any(f.nested for f in parts.wire.fields):
        message = f"compressor `{d.name}` does not say what becomes of NaN and Inf"
        help = "add `nonfinite FIELD`, `nonfinite code FIELD = N` or `nonfinite pass`"
        found.error("E404", message, d.name_span, help=help)
    _check_names(d, parts, found)
    found.raise_if_any()
    return parts


def _check_names(d: ast.CompressorDef, parts: Parts, found: Sink) -> None:
    """Parameters, fields, states and what `compress` calls its values are different names."""
    named: list[tuple[str, Span]] = [(p.name, p.span) for p in d.params]
    named += [(s.name, s.span) for s in parts.states]
    named += [(f.name, f.span) for f in parts.wire.fields] if parts.wire else []
    if parts.compress is not None:
        named.append((str(parts.compress.param), parts.compress.span))
    seen: dict[str, Span] = {}
    for name, span in named:
        if name in _SPECIAL:
            found.error("E202", f"`{name}` has a meaning of its own in compressors", span, help="choose another name")
        elif name in seen:
            also = ((seen[name], f"`{name}` is declared here"),)
            found.error("E202", f"`{name}` is already in use", span, help="choose another name", also=also)
        seen.setdefault(name, span)
    flags: set[str] = set()
    for f in parts.flags:
        if f.name in flags:
            found.error("E202", f"there are two flags `{f.name}`", f.span)
        flags.add(f.name)


def field_of(f: ast.FieldDecl, kind: str, length: int, prefix: str) -> Field:
    """A wire field with its type and length known. Raises E407 and E408."""
    if kind not in TYPES:
        near = difflib.get_close_matches(kind, [*TYPES, "input"], 1)
        help = f"did you mean `{near[0]}`?" if near else f"types: {' '.join(TYPES)} input"
        fail("E407", f"unknown field type `{kind}`", f.span, help=help)
    bits = TYPES[kind][0]
    per = "array" if f.length is not None else "frame" if f.frame else "group"
    if per == "array":
        if f.frame:
            fail("E408", "a field of the frame is one value, without a length", f.span)
        if not 1 <= length <= FRAME:
            fail("E408", f"`{f.name}` has {length} values a group; it may have 1 to {FRAME}", f.span)
        if length * bits % 8:
            message = f"`{f.name}` takes {length} x {bits} bits a group, which is no whole number of bytes"
            fail("E408", message, f.span)
    elif bits < 8:
        fail("E407", f"`{f.name}`: one value a {per} takes a type of at least 8 bits, not {kind}", f.span)
    return Field(prefix + f.name, kind, per, length)
