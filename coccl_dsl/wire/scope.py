"""Which compressor a name means, and its arguments: files named by `use`, then the shipped library."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path

from ..diagnostics import CompileError, Span, fail
from ..lang import ast
from ..lang.files import find, library, read
from ..lang.parse import parse_comp
from .builtins import ROUNDINGS

MAX_WRAPPED = 8
PARAM_KINDS = ("int", "float", "rounding", "type", "compressor")


@dataclass
class Scope:
    """Compressors visible to a file. `owner` is the scope in which a definition's own names are looked up."""

    path: str | None = None
    known: dict[str, tuple[ast.CompressorDef, Scope]] = field(default_factory=dict)
    _open: tuple[str, ...] = ()

    @staticmethod
    def of(uses: tuple[ast.Use, ...], path: str | None, opening: tuple[str, ...] = ()) -> Scope:
        """The scope of a file with these `use` lines. Raises E103 (missing) and E107 (circle)."""
        scope = Scope(path, {}, opening)
        for use in uses:
            if use.target.endswith(".coll"):
                fail("E103", f"`use` takes compressor files (.comp), not `{use.target}`", use.span)
            scope.add_file(find(use.target, "compressors", path, use.span), use.span)
        return scope

    def add_file(self, file: Path, span: Span | None = None) -> None:
        resolved = str(file.resolve())
        if resolved in self._open:
            chain = " -> ".join(Path(p).name for p in (*self._open, resolved))
            fail("E107", f"files use each other in a circle: {chain}", span)
        parsed = parse_comp(read(file, span=span))
        inner = Scope.of(parsed.uses, resolved, (*self._open, resolved))
        self.add(parsed.compressors, inner)

    def add(self, definitions: tuple[ast.CompressorDef, ...], inner: Scope) -> None:
        seen: dict[str, Span] = {}
        for d in definitions:
            if d.name in seen:
                fail("E202", f"there are two compressors `{d.name}` in this file", d.name_span)
            seen[d.name] = d.name_span
            inner.known.setdefault(d.name, (d, inner))
            self.known[d.name] = (d, inner)

    def find(self, name: str, span: Span | None) -> tuple[ast.CompressorDef, Scope]:
        """Raises E215 with a near name."""
        if name in self.known:
            return self.known[name]
        try:
            file = find(name, "compressors", self.path, span)
        except CompileError:
            names = sorted({*self.known, *library("compressors")})
            help = _near(name, names)
            fail("E215", f"unknown compressor `{name}`", span, help=help)
        self.add_file(file, span)
        if name not in self.known:
            fail("E215", f"`{file.name}` defines no compressor `{name}`", span)
        return self.known[name]


def _near(name: str, names: list[str]) -> str:
    """What may have been meant by the name of a compressor that there is not."""
    if Path(f"{name}.comp").is_file():
        return f"`{name}.comp` is here, but not beside the algorithm: name its folder in COCCL_PATH, `COCCL_PATH=.`"
    low = name.lower()
    begun = [n for n in names if n.startswith(low)]
    near = begun if 0 < len(begun) <= 4 else difflib.get_close_matches(low, names, 1)
    if near:
        return f"did you mean {' or '.join(f'`{n}`' for n in near)}?"
    return f"known compressors: {', '.join(names)}"


@dataclass(frozen=True)
class Bound:
    """A definition with every parameter given. values: int, float, str (rounding, type) or Bound (compressor)."""

    definition: ast.CompressorDef
    scope: Scope = field(repr=False, compare=False)
    values: dict[str, int | float | str | Bound]
    span: Span | None = None

    @property
    def name(self) -> str:
        """Canonical text, all parameters written out: equal names mean equal compressors."""
        inner = ", ".join(f"{k}={v.name if isinstance(v, Bound) else v}" for k, v in self.values.items())
        return f"{self.definition.name}({inner})"


def bind(binding: ast.Binding, scope: Scope, outer: tuple[ast.CompressorDef, ...] = ()) -> Bound:
    """Resolve a binding's name and arguments. `outer` are the compressors that wrap it. Raises E107, E203, E215, E216."""
    definition, inner = scope.find(binding.name, binding.span)
    if len(outer) > MAX_WRAPPED:
        fail("E107", f"`{definition.name}` wraps compressors without end", outer[0].name_span)
    params = {p.name: p for p in definition.params}
    given: dict[str, ast.Value] = {}
    order = list(params)
    for i, (name, value) in enumerate(binding.args):
        if name is None:
            if i >= len(order):
                takes = ", ".join(order) or "no parameters"
                fail("E203", f"too many arguments: `{definition.name}` takes {takes}", binding.span)
            name = order[i]
        if name not in params:
            near = difflib.get_close_matches(name, order, 1)
            help = f"did you mean `{near[0]}`?" if near else f"it takes {', '.join(order) or 'no parameters'}"
            fail("E203", f"`{definition.name}` has no parameter `{name}`", binding.span, help=help)
        if name in given:
            fail("E203", f"`{name}` is given twice", binding.span)
        given[name] = value
    values: dict[str, int | float | str | Bound] = {}
    for name, p in params.items():
        value = given.get(name, p.default)
        if value is None:
            fail(
                "E203",
                f"`{definition.name}` needs `{name}`",
                binding.span,
                help=f"for example {definition.name}({name}=...)",
            )
        values[name] = _value(p, value, scope if name in given else inner, (*outer, definition))
    return Bound(definition, inner, values, binding.span)


def _value(
    param: ast.Param, value: ast.Value, scope: Scope, outer: tuple[ast.CompressorDef, ...]
) -> int | float | str | Bound:
    from .codec import TYPES

    kind = param.kind
    if kind not in PARAM_KINDS:
        fail("E216", f"unknown parameter kind `{kind}`", param.span, help=f"kinds are {', '.join(PARAM_KINDS)}")
    if kind == "compressor" and isinstance(value, ast.Binding):
        return bind(value, scope, outer)
    if isinstance(value, ast.Number):
        if kind == "int" and isinstance(value.value, int) and abs(value.value) < 1 << 31:
            return value.value
        if kind == "float":
            return float(value.value)
    elif not value.args:
        if kind == "rounding" and value.name in ROUNDINGS:
            return value.name
        if kind == "type" and value.name in TYPES:
            return value.name
    wants = {
        "int": "a whole number below 2^31",
        "float": "a number",
        "rounding": " or ".join(ROUNDINGS),
        "type": f"a field type: {' '.join(TYPES)}",
        "compressor": "a compressor",
    }
    fail("E216", f"`{param.name}` takes {wants[kind]}, not `{value.span.text}`", value.span)
