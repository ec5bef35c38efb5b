"""Text -> AST. lark does the parsing (grammar/*.lark, LALR); here its trees become the nodes of `ast`, and its errors ours."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from ..diagnostics import Source, Span, fail
from . import ast
from .files import shipped
from .syntax_error import syntax_error

MAX_INT = 1 << 62
MAX_DEPTH = 50
MAX_OPERATIONS = 60

# Words that would make a text unreadable, or another program, as names.
_RESERVED = {
    "coll": frozenset(
        "use collective ranks mesh size inout in out scratch compressor wire require allow let for range when send to as "
        "phase schedule and or not mod div compress decompress".split()
    ),
    "comp": frozenset(
        "use compressor wire nonfinite compress decompress update claim let yield when for and or not mod div".split()
    ),
    "binding": frozenset(),
}
# Rules that nest with the operators of an expression.
_OPERATIONS = frozenset("binary compare or_ and_ not_ negative call".split())


@cache
def _parser(grammar: str) -> Lark:
    return Lark.open(
        str(shipped("grammar") / f"{grammar}.lark"), parser="lalr", propagate_positions=True, maybe_placeholders=True
    )


def _check_depth(source: Source) -> None:
    depth = 0
    for m in re.finditer(r"#[^\n]*|\"[^\"\n]*\"|[({\[]|[)}\]]", source.text):
        if m[0][0] in "({[":
            depth += 1
            if depth > MAX_DEPTH:
                fail("E105", f"brackets nest more than {MAX_DEPTH} deep", Span(source, m.start(), m.end()))
        elif m[0][0] in ")}]":
            depth -= 1


def parse_tree(grammar: str, source: Source) -> Tree[Token]:
    _check_depth(source)
    if not re.sub(r"#[^\n]*", "", source.text).strip():
        what = {"coll": "this file holds no `collective`", "comp": "this file holds no `compressor`"}
        fail("E104", what.get(grammar, f"no compressor is given for `{source.name[1:-1]}`"), Span(source, 0, 0))
    parser = _parser(grammar)
    try:
        return parser.parse(source.text)
    except UnexpectedInput as e:
        syntax_error(parser, source, e)


class _Builder:
    """lark's tree -> ast, one method a rule."""

    def __init__(self, source: Source, grammar: str):
        self.source, self.reserved = source, _RESERVED[grammar]
        self.operations = 0

    def span(self, node: Tree[Token] | Token) -> Span:
        if isinstance(node, Token):
            return Span(self.source, node.start_pos or 0, node.end_pos or 0)
        return Span(self.source, getattr(node.meta, "start_pos", 0), getattr(node.meta, "end_pos", 0))

    def build(self, node: Any) -> Any:
        name = str(node.data).rsplit("__", 1)[-1]
        make = getattr(self, "on_" + name)
        if name not in _OPERATIONS:
            return make(node, *node.children)
        self.operations += 1
        if self.operations > MAX_OPERATIONS:
            message = f"more than {MAX_OPERATIONS} operations, one inside the other"
            fail("E105", message, self.span(node), help="give a part of it a name with `let`")
        made = make(node, *node.children)
        self.operations -= 1
        return made

    def name(self, token: Token) -> str:
        """A name that the text gives or reads: no word of the language."""
        if token in self.reserved:
            fail("E101", f"`{token}` is a word of the language and names nothing else", self.span(token))
        return str(token)

    def all(self, nodes: Any) -> tuple[Any, ...]:
        return tuple(self.build(n) for n in nodes if n is not None)

    def parsed_number(self, token: Token, negative: bool = False) -> int | float:
        text = str(token)
        whole = text.isdigit()
        if whole and (len(text) > 4000 or int(text) > MAX_INT):
            fail("E106", f"{text[:40]}{'...' if len(text) > 40 else ''} is larger than 2^62", self.span(token))
        value: int | float = int(text) if whole else float(text)
        if value == float("inf"):
            fail("E106", f"{text[:40]} is larger than any float", self.span(token))
        return -value if negative else value

    # expressions
    def on_number(self, node, token):
        return ast.Number(self.span(node), self.parsed_number(token))

    def on_binary(self, node, left, op, right):
        op = str(op) if isinstance(op, Token) else str(op.children[0])
        return ast.Binary(self.span(node), op, self.build(left), self.build(right))

    on_compare = on_binary

    def on_or_(self, node, left, right):
        return ast.Binary(self.span(node), "or", self.build(left), self.build(right))

    def on_and_(self, node, left, right):
        return ast.Binary(self.span(node), "and", self.build(left), self.build(right))

    def on_not_(self, node, operand):
        return ast.Unary(self.span(node), "not", self.build(operand))

    def on_negative(self, node, operand):
        return ast.Unary(self.span(node), "-", self.build(operand))

    def on_group(self, node, inner):
        return self.build(inner)

    def on_call(self, node, fn, *args):
        positional, keywords = [], []
        for a in args:
            if a is None:
                continue
            if str(a.data).endswith("keyword"):
                keywords.append((str(a.children[0]), self.build(a.children[1])))
            else:
                positional.append(self.build(a))
        return ast.Call(
            self.span(node), str(fn.children[0]), tuple(positional), tuple(keywords), self.span(fn.children[0])
        )

    def on_ref(self, node, name, field, *index):
        items = self.all(index)
        return ast.Ref(self.span(node), self.name(name), str(field) if field else None, items or None, self.span(name))

    def on_whole(self, node):
        return ast.Whole(self.span(node))

    def on_interval(self, node, low, high):
        return ast.Interval(self.span(node), self.build(low), self.build(high))

    def on_binding(self, node, name, *args):
        return ast.Binding(self.span(node), str(name), tuple(self.build(a) for a in args if a is not None))

    def on_barg(self, node, name, value):
        return (str(name) if name else None, self.build(value))

    def on_signed(self, node, *parts):
        token = parts[-1]
        negative = len(parts) > 1 and parts[0] is not None or self.source.text[self.span(node).start] == "-"
        return ast.Number(self.span(node), self.parsed_number(token, negative))

    def on_use(self, node, target):
        return ast.Use(self.span(target), str(target).strip('"'))

    # algorithms
    def on_collective(self, node, name, header, *items):
        *body, schedule = items
        params = tuple(str(p) for p in header.children[1:] if p is not None)
        return ast.Collective(
            self.span(name),
            self.name(name),
            str(header.children[0]),
            params,
            self.all(body),
            self.build(schedule) if schedule is not None else None,
            self.span(header),
        )

    def on_ranks(self, node, rank, size):
        return ast.Ranks(self.span(node), ((None, self.name(rank), self.name(size)),))

    def on_mesh(self, node, *axes):
        return ast.Ranks(self.span(node), tuple(self.axis(*a.children) for a in axes))

    def axis(self, axis: Token, coordinate: Token, size: Token) -> tuple[str, str, str]:
        return self.name(axis), self.name(coordinate), self.name(size)

    def on_size(self, node, name, value):
        return ast.Size(self.span(name), self.name(name), self.build(value))

    def on_tensor(self, node, role, name, dims):
        sizes = self.all(dims.children) if dims is not None else ()
        return ast.Buffer(self.span(name), str(role.children[0]), self.name(name), sizes, None, None)

    def on_scratch(self, node, name, dims, basis):
        sizes = self.all(dims.children) if dims is not None else ()
        basis_span = self.span(basis) if basis else None
        basis = str(basis) if basis else None
        return ast.Buffer(self.span(name), "scratch", self.name(name), sizes, basis, basis_span)

    def on_bound(self, node, name, binding):
        return ast.CompressorDecl(self.span(name), self.name(name), self.build(binding))

    def on_wires(self, node, name, dims, compressor):
        dims = self.all(dims.children) if dims is not None else ()
        return ast.WireDecl(self.span(name), self.name(name), dims, str(compressor), self.span(compressor))

    def on_require(self, node, test):
        return ast.Require(self.span(node), self.build(test))

    def on_allow(self, node, what):
        return ast.Allow(self.span(what), str(what))

    def on_let(self, node, name, value):
        return ast.Let(self.span(node), self.name(name), self.build(value), self.span(name))

    def on_loop(self, node, name, first, second, block):
        low, high = (first, second) if second is not None else (None, first)
        return ast.For(
            self.span(node),
            self.name(name),
            self.build(low) if low is not None else None,
            self.build(high),
            self.build(block),
            self.span(name),
        )

    def on_block(self, node, *statements):
        return self.all(statements)

    def on_when(self, node, test, block):
        return ast.When(self.span(node), self.build(test), self.build(block))

    def on_phase(self, node, name, block):
        return ast.Phase(self.span(name), self.name(name), self.build(block))

    def on_send(self, node, payload, dest, target):
        return ast.Send(self.span(node), self.build(payload), self.build(dest), self.build(target))

    def on_rank(self, node, value):
        return ast.Dest(self.span(node), None, (self.build(value),))

    def on_along(self, node, axis, value):
        return ast.Dest(self.span(node), str(axis), (self.build(value),))

    def on_at(self, node, *values):
        return ast.Dest(self.span(node), None, self.all(values))

    def on_assign(self, node, target, value):
        return ast.Assign(self.span(node), self.build(target), self.build(value), False)

    def on_accumulate(self, node, target, value):
        return ast.Assign(self.span(node), self.build(target), self.build(value), True)

    def on_schedule(self, node, *entries):
        depths: tuple[int, ...] = ()
        overlaps = []
        for e in entries:
            if str(e.data) == "overlap":
                overlaps.append((str(e.children[0]), str(e.children[1]), self.span(e)))
                continue
            child = e.children[0]
            tokens = [child] if isinstance(child, Token) else child.children
            if depths:
                fail("E218", "`pipeline` stands twice", self.span(e))
            depths = tuple(self.depth(t) for t in tokens)
        return ast.Schedule(self.span(node), depths or (1,), tuple(overlaps))

    def depth(self, token: Token) -> int:
        value = self.parsed_number(token)
        if not isinstance(value, int) or not 1 <= value <= 64:
            fail("E218", f"a pipeline is 1 to 64 slices deep, not {token}", self.span(token))
        return value

    # compressors
    def on_compressor(self, node, name, *rest):
        params, parts = [], []
        for r in rest:
            if r is None:
                continue
            (params if str(r.data) == "param" else parts).append(self.build(r))
        return ast.CompressorDef(self.span(node), self.name(name), tuple(params), tuple(parts), self.span(name))

    def on_param(self, node, name, kind, default):
        return ast.Param(
            self.span(node), self.name(name), str(kind), self.build(default) if default is not None else None
        )

    def on_basis(self, node, name, size):
        return ast.Basis(self.span(node), str(name), self.build(size))

    def on_state(self, node, name, dtype, scope, first):
        return ast.State(
            self.span(node), self.name(name), str(dtype), str(scope.children[0]), str(first) if first else None
        )

    def on_wire(self, node, *fields):
        return ast.WireBlock(self.span(node), self.all(fields))

    def on_field(self, node, name, kind, length, frame):
        nested = str(kind.data).endswith("nested")
        word = str(kind.children[0])
        return ast.FieldDecl(
            self.span(node),
            self.name(name),
            None if nested else word,
            word if nested else None,
            self.build(length) if length is not None else None,
            frame is not None,
        )

    def on_nonfinite_field(self, node, name="code"):
        return ast.NonFinite(self.span(node), str(name), None)

    def on_nonfinite_code(self, node, name, value):
        return ast.NonFinite(self.span(node), str(name), self.build(value))

    def on_exact(self, node, *names):
        return ast.Dtypes(self.span(node), "exact", tuple(str(n) for n in names))

    def on_only(self, node, *names):
        return ast.Dtypes(self.span(node), "only", tuple(str(n) for n in names))

    def on_flag(self, node, name, *rest):
        *told, test = (r for r in rest if r is not None)
        field, code = (str(told[0]), self.build(told[1])) if told else (None, None)
        return ast.Flag(self.span(node), str(name), self.build(test), field, code)

    def on_compress(self, node, param, *steps):
        return ast.Body(self.span(node), "compress", self.name(param), None, self.all(steps), None)

    def on_decompress(self, node, *steps):
        *body, result = steps
        return ast.Body(self.span(node), "decompress", None, None, self.all(body), self.build(result))

    def on_update(self, node, scope, *steps):
        return ast.Body(self.span(node), "update", None, str(scope.children[0]), self.all(steps), None)

    def on_claim(self, node, test, when):
        return ast.Claim(self.span(node), self.build(test), self.build(when) if when is not None else None)


def parse_coll(source: Source) -> ast.CollFile:
    """Parse an algorithm file. Raises CompileError (E101, E104 - E106, E218)."""
    tree, build = parse_tree("coll", source), _Builder(source, "coll")
    nodes = [build.build(t) for t in tree.children]
    return ast.CollFile(
        tuple(n for n in nodes if isinstance(n, ast.Use)), tuple(n for n in nodes if isinstance(n, ast.Collective))
    )


def parse_comp(source: Source) -> ast.CompFile:
    """Parse a compressor file. Raises CompileError (E101, E104 - E106)."""
    tree, build = parse_tree("comp", source), _Builder(source, "comp")
    nodes = [build.build(t) for t in tree.children]
    return ast.CompFile(
        tuple(n for n in nodes if isinstance(n, ast.Use)), tuple(n for n in nodes if isinstance(n, ast.CompressorDef))
    )


def parse_binding(text: str, name: str = "compressor") -> ast.Binding:
    """Parse `int8(group=512)`, as given to --set and bind. Raises CompileError (E101)."""
    source = Source(f"<{name}>", text)
    tree = parse_tree("binding", source)
    return _Builder(source, "binding").build(tree.children[0])
