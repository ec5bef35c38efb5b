"""Where keys and values stand in a TOML text that is known to parse: `tomllib` gives values without places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..diagnostics import Source, Span

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Place:
    key: Span
    value: Span


def places(source: Source) -> dict[Path, Place]:
    """Path of a key, ("rule", 0, "on"), -> its place. Headers `[[rule]]` stand at ("rule", 0). Keys inside inline tables have the place of
    the key that the table is the value of, so they are not listed."""
    text, found = source.text, {}
    table: Path = ()
    counts: dict[str, int] = {}
    for start, end in _statements(text):
        if text[start] == "[":
            double = text.startswith("[[", start)
            name = text[start:end].split("#")[0].strip().strip("[]").strip().strip("\"'")
            table = (name,)
            if double:
                table = (name, counts.get(name, 0))
                counts[name] = counts.get(name, 0) + 1
            span = Span(source, start, start + len(text[start:end].split("#")[0].rstrip()))
            found[table] = Place(span, span)
            continue
        equals = _skip(text, start, "=")
        key_end = start + len(text[start:equals].rstrip())
        value = equals + 1 + len(text[equals + 1 : end]) - len(text[equals + 1 : end].lstrip())
        name = text[start:key_end].strip("\"'")
        found[(*table, name)] = Place(Span(source, start, key_end), Span(source, value, end))
    return found


def _statements(text: str) -> Iterator[tuple[int, int]]:
    """[start, end) of every header and key/value, without comments and blanks."""
    at = 0
    while at < len(text):
        if text[at] in " \t\r\n":
            at += 1
        elif text[at] == "#":
            at = _line_end(text, at)
        else:
            end = _line_end(text, at) if text[at] == "[" else _skip(text, at, "\n#")
            yield at, at + len(text[at:end].rstrip())
            at = end


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _skip(text: str, at: int, stops: str) -> int:
    """The first of `stops` outside strings, brackets and, within brackets, comments."""
    depth = 0
    while at < len(text):
        c = text[at]
        if c in "\"'":
            at = _string_end(text, at)
            continue
        if depth == 0 and c in stops:
            return at
        if c == "#":
            at = _line_end(text, at)
            continue
        depth += (c in "[{") - (c in "]}")
        at += 1
    return len(text)


def _string_end(text: str, at: int) -> int:
    quote = text[at] * 3 if text.startswith(text[at] * 3, at) else text[at]
    end = at + len(quote)
    while end < len(text) and not text.startswith(quote, end):
        end += 2 if text[end] == "\\" and quote[0] == '"' else 1
    return end + len(quote)
