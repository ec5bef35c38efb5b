"""Spans, the catalogue of every error, and how an error is shown.

A diagnostic names what is wrong in the user's terms (rank, chunk, step), where (file:line:col with the source line and a caret), and the
mend where one is likely. Passes collect diagnostics in a `Sink` and raise them together as one `CompileError`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NoReturn

from .shown import Shown


@dataclass(frozen=True, eq=False)
class Source:
    """A text and the name it is shown under."""

    name: str
    text: str
    path: str | None = None

    @cached_property
    def line_starts(self) -> list[int]:
        starts = [0]
        for i, c in enumerate(self.text):
            if c == "\n":
                starts.append(i + 1)
        return starts

    def position(self, offset: int) -> tuple[int, int]:
        """Offset in characters -> (line, column), both from 1."""
        line = bisect_right(self.line_starts, offset)
        return line, offset - self.line_starts[line - 1] + 1

    def line(self, number: int) -> str:
        start = self.line_starts[number - 1]
        end = self.text.find("\n", start)
        return self.text[start : end if end >= 0 else len(self.text)]


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of a source."""

    source: Source = field(compare=False, repr=False)
    start: int
    end: int

    @property
    def text(self) -> str:
        return self.source.text[self.start : self.end]

    @property
    def location(self) -> str:
        line, column = self.source.position(self.start)
        return f"{self.source.name}:{line}:{column}"

    def to(self, other: Span) -> Span:
        return Span(self.source, self.start, max(self.end, other.end))


CATALOGUE: dict[str, tuple[str, str]] = {
    # ---- files and syntax
    "E101": ("syntax error", "The text does not parse. The message names what could stand at the caret."),
    "E102": ("not UTF-8", "Algorithm and compressor files are UTF-8 text."),
    "E103": (
        "file not found",
        "`use` looks in the file's own folder, then in COCCL_PATH, then in the library that ships with the package.",
    ),
    "E104": (
        "nothing in this file",
        "A .coll file holds at least one `collective`, a .comp file at least one `compressor`.",
    ),
    "E105": (
        "nested too deeply",
        "Brackets may nest 50 deep, and an expression holds at most 60 operations one inside the other.",
    ),
    "E106": ("number too large", "Integers lie within -2^62 .. 2^62."),
    "E107": ("files use each other in a circle", "A compressor that wraps another takes it as a parameter instead."),
    "E108": (
        "no such definition",
        "The file has no collective or compressor of that name; with several in a file, say FILE:NAME.",
    ),
    # ---- names and types
    "E201": ("unknown name", "Names are block-scoped: a `let` or `as` inside a block is not visible after it."),
    "E202": (
        "name already in use",
        "`let` of a visible name is an error, so that a name means one thing. `as` may rebind a wire.",
    ),
    "E203": ("wrong arguments", "A function or compressor got the wrong number or kind of arguments."),
    "E204": (
        "wrong kind of value",
        "Every expression is a Chunk, a Wire, an Int or a Condition, and each place wants one of them.",
    ),
    "E205": (
        "control flow depends on the rank",
        "All ranks run one text in lockstep: loop bounds and sizes may not differ from rank to rank. Use `when`.",
    ),
    "E206": (
        "not a wire",
        "`decompress` opens a wire, made by `compress` or received. A chunk is already a plain value.",
    ),
    "E207": (
        "a wire cannot be computed with",
        "Wires may be assigned, sent, received and decompressed; never added or looked into. Decompress first.",
    ),
    "E208": (
        "rebound to another type",
        "`as` may rebind a name to a value of the same type: a wire stays a wire of the same compressor.",
    ),
    "E209": ("different numbers of chunks", "Both sides of a statement must have the same number of chunks."),
    "E210": (
        "two bases in one statement",
        "Values of two different bases cannot be combined. A value in no basis converts by itself.",
    ),
    "E211": ("wrong number of indices", "A buffer takes one index (or `a : b` or `:`) for each of its axes."),
    "E212": ("unknown collective", "The header names what the collective must compute."),
    "E213": ("ranks are declared once", "Each collective says `ranks r of n` or `mesh (...)` once, before it is used."),
    "E214": (
        "buffers do not fit the collective",
        "The header fixes which buffers there are and how many chunks they have.",
    ),
    "E215": ("unknown compressor", "A compressor is found in the files named by `use`, then in the library."),
    "E216": ("bad parameter", "A compressor's parameter has a type and a range."),
    "E217": (
        "cannot be assigned",
        "Only buffers, wires and names made by `as` may be assigned; `in` buffers and sizes may not.",
    ),
    "E218": ("unknown schedule entry", "`overlap A with B` names two phases; `pipeline` takes a depth of 1 to 64."),
    "E219": ("unknown permission", "The only thing that can be allowed is `divergent`."),
    # ---- the proof
    "E301": ("adds another chunk", "A sum may only join contributions to the same chunk."),
    "E302": ("a contribution counted twice", "Each rank's contribution enters a sum exactly once."),
    "E303": ("wrong result", "At the end a chunk is not what the header promises."),
    "E304": ("two ranks send to one peer in one statement", "A statement delivers at most one message to each rank."),
    "E305": ("no such peer", "A send names a rank outside the group."),
    "E306": ("read before it has a value", "The name was not assigned, or nothing was received in it on that rank."),
    "E307": (
        "replicas differ",
        "The ranks would end with different bits. Let the owner keep decompress(compress(x)), or say `allow divergent`.",
    ),
    "E308": ("requirement not met", "A `require` line does not hold."),
    "E309": (
        "state used twice",
        "A compress with state may run once a chunk and call: its state is read and written once.",
    ),
    "E310": ("index out of range", "A chunk index lies outside its buffer."),
    "E311": ("undefined arithmetic", "Division by zero, a negative shift, log2 of something that is no power of two."),
    "E312": (
        "too long",
        "Over all ranks a text runs at most 2 million statements, and its buffers hold at most 1048576 chunks.",
    ),
    "E314": ("does not fit this world", "The collective needs another number of ranks."),
    # ---- compressors
    "E401": (
        "group does not divide the frame",
        "Groups are powers of two from 1 to 32768, so that they divide the frame of 32768 elements.",
    ),
    "E402": ("assigned twice", "A wire field or state is assigned exactly once."),
    "E403": ("never assigned", "Every wire field gets a value in `compress`, every state one in `update`."),
    "E404": (
        "no policy for NaN and Inf",
        "Each compressor states one: `nonfinite FIELD`, `nonfinite code FIELD = N` or `nonfinite pass`.",
    ),
    "E405": (
        "state would differ between ranks",
        "`both` state is updated only from wire fields, `decompressed` and itself: the receiver has nothing else.",
    ),
    "E406": (
        "part missing or repeated",
        "A compressor has one `wire`, one `compress`, one `decompress` and one `nonfinite`.",
    ),
    "E407": ("unsupported type", "The types are s2 s4 s8 u1 u2 u4 u8 u16 f16 bf16 f32 e4m3 e5m2 e2m1 e8m0 and input."),
    "E408": (
        "lengths do not fit",
        "Values of one group have the group's length, a field's length, or are single numbers.",
    ),
    "E409": ("not available here", "This name cannot be read in this part of a compressor."),
    "E410": ("reserved", "Variable-length coding has no static size; `extern` is reserved for it."),
    # ---- binding
    "E501": (
        "cannot be bound",
        "The compressor does not take this dtype, or a binding names something the collective does not have.",
    ),
    # ---- policies
    "E601": (
        "unknown key",
        "A policy and its rules have a fixed set of keys, so that a slip of the pen is not ignored.",
    ),
    "E602": (
        "wrong value",
        "A key of a policy is missing, or its value is not of its kind, or names nothing there is.",
    ),
    "E603": (
        "impossible rule",
        "The parts of a rule do not go together, or an earlier rule takes all of its calls: the first rule that fits is the one.",
    ),
}


@dataclass(frozen=True)
class Diagnostic:
    """One error. `also` are further places: (span, label) pairs shown below the first."""

    code: str
    message: str
    span: Span | None = None
    label: str = ""
    help: str = ""
    also: tuple[tuple[Span, str], ...] = ()

    def __post_init__(self) -> None:
        assert self.code in CATALOGUE, self.code

    def render(self) -> str:
        """Plain text: a headline, the source lines with carets, the help."""
        where = f"{self.span.location}: " if self.span else ""
        lines = [f"{where}error[{self.code}]: {self.message}"]
        if self.span:
            lines += _excerpt(self.span, self.label)
        for span, label in self.also:
            lines.append(f"  {span.location}:")
            lines += _excerpt(span, label)
        if self.help:
            lines.append(f"   help: {self.help}")
        return "\n".join(lines)


def _excerpt(span: Span, label: str) -> list[str]:
    number, column = span.source.position(span.start)
    raw = span.source.line(number)
    shift = max(0, column - 1 - 100)  # keep the caret in view on very long lines
    text = raw[shift : shift + 150].replace("\t", " ")
    width = max(1, min(span.end - span.start, len(raw) - column + 1, 150 - (column - 1 - shift)))
    gutter = f"{number:>5} | "
    mark = " " * (len(gutter) - 2) + "| " + " " * (column - 1 - shift) + "^" * width
    return [f"{gutter}{text}".rstrip(), f"{mark} {label}".rstrip()]


class CompileError(Shown, Exception):
    """What is wrong with a text: all diagnostics that could be found, in order of position."""

    def __init__(self, diagnostics: Iterable[Diagnostic]):
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n\n".join(d.render() for d in self.diagnostics))

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(d.code for d in self.diagnostics)

    def _render_traceback_(self) -> list[str]:
        """What IPython shows under the cell: the text with its carets, in colour, instead of a traceback."""
        from .pictures.coloured import ansi, error_pieces

        return ansi(error_pieces(self)).split("\n")


class Sink:
    """Collects diagnostics; equal ones (same code and place) are kept once."""

    LIMIT = 20

    def __init__(self) -> None:
        self.found: list[Diagnostic] = []
        self._seen: set[tuple[str, str, Span | None]] = set()

    def error(
        self,
        code: str,
        message: str,
        span: Span | None = None,
        *,
        label: str = "",
        help: str = "",
        also: tuple[tuple[Span, str], ...] = (),
    ) -> None:
        key = (code, span.source.name if span else "", span)
        if key in self._seen or len(self.found) >= self.LIMIT:
            return
        self._seen.add(key)
        self.found.append(Diagnostic(code, message, span, label, help, also))

    def raise_if_any(self) -> None:
        if self.found:
            raise CompileError(
                sorted(self.found, key=lambda d: (d.span.source.name, d.span.start) if d.span else ("", -1))
            )


def fail(code: str, message: str, span: Span | None = None, *, label: str = "", help: str = "") -> NoReturn:
    """Raise one diagnostic at once, where nothing after it could be trusted."""
    raise CompileError([Diagnostic(code, message, span, label, help)])
