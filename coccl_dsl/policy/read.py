"""A policy file -> a `Policy`, or every mistake in it with line and column."""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..diagnostics import CompileError, Sink, Source, Span, fail
from ..lang.files import read
from ..lang.parse import parse_binding
from ..pipeline import Collective, load
from ..wire.codec import DTYPES
from ..wire.compile import compile_codec
from ..wire.scope import Scope, bind
from .model import ANY, CALL_OPS, DIRECTIONS, MIN_BYTES, NATIVE, ROLES, Policy, Rule, Selector
from .places import Path as KeyPath
from .places import Place, places

SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
TRANSPORTS = ("auto", "symm", "torch")
STEPS = ("calls", "step()")
KIND = {"send": "send_recv"}
# Where DDP or FSDP2 says which parameters a call is for, so that a state stays with its own.
NAMED = {("dp", "all_reduce"), ("fsdp", "reduce_scatter"), ("fsdp", "all_gather")}
_TOP = ("default", "arena_mib", "steps", "debug", "debug_every", "log", "rule")
_RULE = (
    "on",
    "group",
    "dtype",
    "min_bytes",
    "max_bytes",
    "after_step",
    "compressor",
    "algorithm",
    "transport",
)


def read_policy(path: str | Path) -> Policy:
    """Read a file. Raises CompileError with every mistake found (E101 - E103 for the file, E601 - E603 for what it says)."""
    return read_policy_text(read(Path(path)))


def read_policy_text(source: Source | str) -> Policy:
    """The same for a text."""
    source = source if isinstance(source, Source) else Source("<policy>", source)
    try:
        table = tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as e:
        text = str(e)
        at = re.search(r"\(at line (\d+), column (\d+)\)", text)
        offset = source.line_starts[int(at[1]) - 1] + int(at[2]) - 1 if at else len(source.text)
        fail("E101", text.split(" (at ")[0], Span(source, min(offset, len(source.text)), offset + 1))
    return _Reader(source, table).policy()


class _Reader:
    def __init__(self, source: Source, table: dict[str, Any]):
        self.source, self.table, self.places, self.sink = source, table, places(source), Sink()
        self.texts: dict[str, str] = {}

    # ------------------------------------------------------------ places and complaints

    def place(self, path: KeyPath) -> Place:
        """Of a key, or of the nearest thing around it that has one."""
        while path and path not in self.places:
            path = path[:-1]
        whole = Span(self.source, 0, 1)
        return self.places.get(path, Place(whole, whole))

    def wrong(self, path: KeyPath, message: str, help: str = "", item: object = None, code: str = "E602") -> None:
        """item: the part of the value that is wrong, where it is a list."""
        span = self.place(path).value
        if isinstance(item, str) and (at := re.search(rf"([\"']){re.escape(item)}\1", span.text)):
            span = Span(self.source, span.start + at.start(), span.start + at.end())
        self.sink.error(code, message, span, help=help)

    def known(self, given: dict[str, Any], names: tuple[str, ...], path: KeyPath, what: str) -> None:
        for key in given:
            if key not in names:
                self.sink.error(
                    "E601", f"{what} has no key `{key}`", self.place((*path, key)).key, help=_near(key, names)
                )

    def one_of(self, path: KeyPath, value: Any, names: tuple[str, ...], what: str) -> bool:
        if isinstance(value, str) and value in names:
            return True
        self.wrong(path, f"{what} is {value!r}", _near(value, names), item=value)
        return False

    def number(self, given: dict[str, Any], path: KeyPath, key: str, default: int, least: int = 0) -> int:
        value = given.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.wrong((*path, key), f"`{key}` is {value!r}: a whole number from {least} on is wanted")
            return default
        return value

    def size(self, given: dict[str, Any], path: KeyPath, key: str) -> int | None:
        value = given.get(key)
        if value is None:
            return None
        written = re.fullmatch(r"(\d+)\s*(B|KiB|MiB|GiB)", value) if isinstance(value, str) else None
        if written:
            return int(written[1]) * SIZES[written[2]]
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        self.wrong((*path, key), f"`{key}` is {value!r}: a number of bytes is wanted", 'written as 65536 or "64KiB"')
        return None

    # ------------------------------------------------------------ the whole

    def policy(self) -> Policy:
        t = self.table
        self.known(t, _TOP, (), "a policy")
        if t.get("default", NATIVE) != NATIVE:
            self.wrong(("default",), f'`default` is {t["default"]!r}: it is "native"', 'for all calls, say on = "*"')
        if "steps" in t:
            self.one_of(("steps",), t["steps"], STEPS, "`steps`")
        debug = t.get("debug", False)
        if not isinstance(debug, bool):
            self.wrong(("debug",), f"`debug` is {debug!r}: true or false is wanted")
        log = t.get("log")
        if log is not None and not (isinstance(log, str) and log):
            self.wrong(("log",), f"`log` is {log!r}: the name of a file is wanted")
        given = t.get("rule", [])
        if not isinstance(given, list) or not all(isinstance(r, dict) for r in given):
            self.wrong(("rule",), "`rule` is not a list of tables", "each rule starts with a line [[rule]]")
            given = []
        rules = [r for i, table in enumerate(given) if (r := self.rule(i, table)) is not None]
        self.reached(rules)
        arena, every = self.number(t, (), "arena_mib", 256, 1), self.number(t, (), "debug_every", 0)
        self.sink.raise_if_any()
        texts = tuple(sorted(self.texts.items()))
        steps = t.get("steps", STEPS[0])
        return Policy(self.source.text, self.source.name, tuple(rules), arena, steps, debug, every, log, texts)

    def reached(self, rules: list[Rule]) -> None:
        """A rule that an earlier one always takes the calls of is a mistake in the order."""
        for i, later in enumerate(rules):
            for earlier in rules[:i]:
                if _always_first(earlier, later):
                    self.sink.error(
                        "E603",
                        f"rule {later.number} is never reached: rule {earlier.number} takes its calls",
                        self.place(("rule", later.number - 1)).key,
                        help=f"put it before the rule of line {earlier.line}",
                    )
                    break

    # ------------------------------------------------------------ one rule

    def rule(self, i: int, given: dict[str, Any]) -> Rule | None:
        path: KeyPath = ("rule", i)
        before = len(self.sink.found)
        self.known(given, _RULE, path, "a rule")
        for key in ("on", "compressor"):
            if key not in given:
                self.sink.error(
                    "E602",
                    f"rule {i + 1} says no `{key}`",
                    self.place(path).key,
                    help={"on": 'on = "dp.all_reduce", or on = "*"', "compressor": 'compressor = "int8"'}[key],
                )
        on = self.selectors((*path, "on"), given.get("on", []))
        group = given.get("group")
        if group is not None:
            try:
                re.compile(group)
            except (re.error, TypeError) as e:
                self.wrong((*path, "group"), f"`group` is not a pattern: {e}", "a regular expression is wanted")
        asked = given.get("dtype")
        names = [asked] if isinstance(asked, str) else asked
        if names is not None and (not isinstance(names, list) or not names):
            self.wrong((*path, "dtype"), f"`dtype` is {asked!r}", f"one of {', '.join(DTYPES)}, or a list of these")
            names = None
        if names is not None:
            names = [n for n in names if self.one_of((*path, "dtype"), n, DTYPES, "`dtype`")] or None
        asked_least, most = self.size(given, path, "min_bytes"), self.size(given, path, "max_bytes")
        usual = 0 if given.get("compressor") == NATIVE else MIN_BYTES if most is None else min(MIN_BYTES, most)
        least = asked_least if asked_least is not None else usual
        if most is not None and most < least:
            self.wrong((*path, "max_bytes"), f"`max_bytes` {most} is below `min_bytes` {least}", code="E603")
        after = self.number(given, path, "after_step", 0)
        transport = given.get("transport", "auto")
        self.one_of((*path, "transport"), transport, TRANSPORTS, "`transport`")
        if "compressor" not in given:
            return None
        compressor = given["compressor"]
        dtypes = self.runs(path, given, on, tuple(names) if names is not None else None)
        stateful = self.fits(path, given, on)
        if len(self.sink.found) > before:
            return None
        if isinstance(compressor, dict):
            compressor = tuple(sorted(compressor.items()))
        line = self.source.position(self.place(path).key.start)[0]
        algorithm = given.get("algorithm", "auto")
        return Rule(i + 1, line, on, group, dtypes, least, most, after, compressor, algorithm, transport, stateful)

    def selectors(self, path: KeyPath, value: Any) -> tuple[Selector, ...]:
        found = []
        for item in [value] if isinstance(value, str) else value if isinstance(value, list) else [value]:
            parts = item.split(".") if isinstance(item, str) else []
            if not 1 <= len(parts) <= 3:
                self.wrong(path, f"`on` is {item!r}", "written as ROLE, ROLE.OP or ROLE.send.DIRECTION", item=item)
                continue
            role, op, direction = [*parts, ANY, ANY][:3]
            if role not in (*ROLES, ANY):
                self.wrong(path, f"`{role}` is not a parallel dimension", _near(role, (*ROLES, ANY)), item=item)
            elif op == "recv":
                self.wrong(path, "`recv` is decided by its sender's rule", f"say {role}.send", item=item)
            elif op not in (*CALL_OPS, ANY):
                self.wrong(path, f"`{op}` is not a collective", _near(op, (*CALL_OPS, ANY)), item=item)
            elif direction not in (*DIRECTIONS, ANY):
                self.wrong(path, f"`{direction}` is no direction", f"one of {', '.join(DIRECTIONS)}", item=item)
            elif direction != ANY and (op != "send" or role not in ("pp", ANY)):
                self.wrong(path, f"{role}.{op} has no direction; pp.send has", item=item, code="E603")
            else:
                found.append(Selector(role, op, direction))
        if not found and not self.sink.found:
            self.wrong(path, "`on` is empty", 'on = "*" is for all calls')
        return tuple(found)

    def runs(
        self, path: KeyPath, given: dict[str, Any], on: tuple[Selector, ...], asked: tuple[str, ...] | None
    ) -> tuple[str, ...]:
        """The dtypes that the rule is for: those asked for, which must all do, or those that the compressor takes."""
        compressor, algorithm = given["compressor"], given.get("algorithm", "auto")
        place = self.place((*path, "compressor")).value
        if compressor == NATIVE:
            if algorithm != "auto":
                self.wrong((*path, "algorithm"), "a native call runs no algorithm of ours", code="E603")
            return asked or DTYPES
        if isinstance(compressor, dict) and algorithm == "auto":
            self.wrong((*path, "compressor"), "compressors by name need an `algorithm` that has the names", code="E603")
            return DTYPES
        if not isinstance(compressor, str | dict) or not all(isinstance(v, str) for v in _values(compressor)):
            self.wrong(
                (*path, "compressor"), f"`compressor` is {compressor!r}", 'for example "int8", or { q = "int8" }'
            )
            return DTYPES
        if algorithm == "auto" and isinstance(compressor, str):
            return self.first_good(asked, lambda d: self.codec(compressor, d), (*path, "compressor"), place)
        collective = self.collective(path, algorithm, on)
        if collective is None:
            return DTYPES
        if isinstance(compressor, dict):
            unknown = sorted(compressor.keys() - collective.program().codecs.keys())
            if unknown:
                names = tuple(collective.program().codecs)
                self.wrong(
                    (*path, "compressor"),
                    f"`{algorithm}` has no compressor `{unknown[0]}`",
                    _near(unknown[0], names),
                    code="E603",
                )
                return DTYPES

        def check(dtype: str) -> None:
            for v in _values(compressor):
                self.codec(v, dtype)
            named = compressor if isinstance(compressor, dict) else rebound(collective, compressor, dtype)
            collective.program(dtype, named)

        return self.first_good(asked, check, (*path, "compressor"), place)

    def first_good(
        self, asked: tuple[str, ...] | None, check: Callable[[str], None], path: KeyPath, place: Span
    ) -> tuple[str, ...]:
        good, errors = [], []
        for dtype in asked or DTYPES:
            try:
                check(dtype)
                good.append(dtype)
            except CompileError as e:
                errors.append(e)
        if errors and (asked is not None or not good):
            for d in errors[0].diagnostics:
                self.sink.error(d.code, d.message, self.inside(d.span, place), help=d.help)
        return tuple(good)

    def inside(self, inner: Span | None, place: Span) -> Span:
        """Where a place in a compressor's text stands in the policy."""
        if inner is not None and inner.source.name.startswith("<") and inner.source.text in place.text:
            at = place.start + place.text.index(inner.source.text)
            return Span(self.source, at + inner.start, at + inner.end)
        return place

    def codec(self, text: str, dtype: str) -> None:
        made = compile_codec(bind(parse_binding(text), Scope()), dtype)
        self.texts[f"compressor {text}"] = _digest(made.text)

    def collective(self, path: KeyPath, name: Any, on: tuple[Selector, ...]) -> Collective | None:
        place = self.place((*path, "algorithm")).value
        if not isinstance(name, str):
            self.wrong((*path, "algorithm"), f"`algorithm` is {name!r}", "auto, a shipped algorithm, or a file")
            return None
        try:
            made = load(name)
        except CompileError as e:
            for d in e.diagnostics:
                self.sink.error(d.code, d.message, place, help=d.help)
            return None
        self.texts[f"algorithm {name}"] = _digest(made.source.text)
        if made.kind == "all_to_all" and made.axes:
            self.sink.error(
                "E603",
                f"`{name}` hands parts on, so it takes even parts only; parts may be of any sizes here",
                place,
                help='algorithm = "all_to_all_direct"',
            )
            return None
        for s in on:
            if KIND.get(s.op, s.op) != made.kind:
                what = "any collective" if s.op == ANY else f"{s.op}"
                self.sink.error(
                    "E603", f"`{name}` is {made.kind}, the rule is for {what}", place, help=f"on = {s.role}.{made.kind}"
                )
                return None
        return made

    def fits(self, path: KeyPath, given: dict[str, Any], on: tuple[Selector, ...]) -> bool:
        """Complain of combinations that cannot run; whether a compressor keeps a state."""
        ops = {s.op for s in on}
        if given.get("transport") == "symm" and "send" in ops:
            self.wrong((*path, "transport"), "send runs over torch's own backend, not symm", code="E603")
        if "max_bytes" in given and ops & {"all_to_all"}:
            self.wrong(
                (*path, "max_bytes"),
                "`max_bytes` is not for all_to_all, whose parts differ in size",
                "`min_bytes` is: parts below it go raw",
                code="E603",
            )
        stateful = False
        for text in _values(given["compressor"]):
            if text == NATIVE or not isinstance(text, str):
                continue
            try:
                made = compile_codec(bind(parse_binding(text), Scope()), "f32")
            except CompileError:
                continue  # told elsewhere, where it is asked for
            unnamed = [s for s in on if (s.role, s.op) not in NAMED]
            stateful = stateful or made.stateful
            if made.stateful and any(s.role == "dp" for s in on) and not text.startswith("error_feedback("):
                self.wrong(
                    (*path, "compressor"),
                    f"`{text}` keeps a state that DDP's hook does not",
                    "error_feedback(...) is what dp.all_reduce takes",
                    code="E603",
                )
            if made.stateful and unnamed:
                self.wrong(
                    (*path, "on"),
                    f"`{text}` keeps a state, and {unnamed[0]} does not say for which parameters",
                    f"on = {', '.join(f'{r}.{o}' for r, o in sorted(NAMED))}",
                    item=str(unnamed[0]),
                    code="E603",
                )
        return stateful


def rebound(collective: Collective, compressor: str, dtype: str) -> dict[str, str]:
    """The text's compressors, each bound to the one given; those that only round (raw) stay, unless there are no others."""
    shipped = collective.program(dtype).codecs
    levels = [n for n, c in shipped.items() if not c.cast]
    return dict.fromkeys(levels if levels and compressor != "raw" else shipped, compressor)


def _values(compressor: Any) -> list[Any]:
    return list(compressor.values()) if isinstance(compressor, dict) else [compressor]


def _always_first(earlier: Rule, later: Rule) -> bool:
    return (
        earlier.after_step == 0
        and earlier.group in (None, later.group)
        and set(later.dtypes) <= set(earlier.dtypes)
        and earlier.min_bytes <= later.min_bytes
        and (earlier.max_bytes is None or (later.max_bytes or float("inf")) <= earlier.max_bytes)
        and all(any(a.covers(b) for a in earlier.on) for b in later.on)
    )


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _near(value: object, names: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(str(value), names, 1)
    return f"did you mean `{near[0]}`?" if near else f"one of {', '.join(names)}"
