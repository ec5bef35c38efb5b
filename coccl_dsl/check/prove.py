"""How a run ended, against what the header promises: postcondition, same bits on all replicas, `require` lines."""

from __future__ import annotations

import operator
from collections.abc import Callable

from ..diagnostics import Sink, Span
from ..lang import ast
from ..lang.expressions import counted
from ..lang.program import Program
from .run import Run
from .values import Trace, Value

# Wrong outputs mostly have one cause, so only the first are shown.
MAX_WRONG = 2


def prove(program: Program, run: Run, trace: Trace, sink: Sink) -> None:
    """Reports E303, E307, E308 into `sink`."""
    wrong = _postcondition(program, run, trace, sink)
    if not wrong:
        _replicas(program, run, trace, sink)
    _requirements(program, run, trace, sink)


def _expected(kind: str, world: int, params: dict[str, int], rank: int, i: int) -> tuple[int, int] | None:
    """(extent, mask) that chunk i of this rank's output must have, or None where nothing is promised."""
    full = (1 << world) - 1
    match kind:
        case "all_reduce":
            return i, full
        case "broadcast":
            return i, 1 << params["root"]
        case "reduce":
            return (i, full) if rank == params["root"] else None
        case "reduce_scatter":
            return rank, full
        case "all_gather":
            return i, 1 << i
        case "all_to_all":
            return i * world + rank, 1 << i
        case _:
            return (i, 1 << params["source"]) if rank == params["target"] else None


def _ranks(mask: int) -> list[int]:
    return [r for r in range(mask.bit_length()) if mask >> r & 1]


def _list(ranks: list[int]) -> str:
    shown = ", ".join(str(r) for r in ranks[:6]) + (", ..." if len(ranks) > 6 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _made_here(v: Value) -> bool:
    """Whether the rank that holds v computed it, rather than received it."""
    while v.op == "turn":
        v = v.args[0]
    return v.op != "open" or v.args[0].message is None


def _postcondition(p: Program, run: Run, t: Trace, sink: Sink) -> bool:
    """Report wrong outputs; one value that many ranks hold once, where it was made."""
    wrong: dict[tuple[int, ...], tuple[bool, int, int]] = {}
    for rank, outputs in enumerate(t.outputs):
        for i, v in enumerate(outputs):
            want = _expected(p.kind, t.world, t.params, rank, i)
            if want is None or (v is not None and (v.extent, v.mask) == want):
                continue
            made = v is None or _made_here(v)
            key = (rank, i) if v is None else (v.extent, v.number, want[0])
            if key not in wrong or made and not wrong[key][0]:
                wrong[key] = (made, rank, i)
    for _, rank, i in sorted(wrong.values(), key=lambda w: (w[1], w[2])):
        want = _expected(p.kind, t.world, t.params, rank, i)
        assert want is not None
        writer = t.writers[rank][i]
        problem = _problem(p, run, t, rank, i, want)
        label = "last written here" if writer else "never written"
        sink.error("E303", f"{problem}{run.where()}", writer or run.target.span, label=label)
        if len(sink.found) >= MAX_WRONG:
            break
    return bool(wrong)


def _problem(p: Program, run: Run, t: Trace, rank: int, i: int, want: tuple[int, int]) -> str:
    (extent, mask), v = want, t.outputs[rank][i]
    name = f"chunk {i} of `{run.target.name}`" if run.target.dims else f"`{run.target.name}`"
    if v is None:
        return f"{name} has no value on rank {rank}"
    if v.extent != extent:
        return f"rank {rank} ends with chunk {v.extent} in {name}, where chunk {extent} belongs"
    missing = _ranks(mask & ~v.mask)
    if mask.bit_count() == 1 and missing:
        root = ", the root" if p.kind == "broadcast" else ""
        return f"rank {rank} ends with {name} of {_list(_ranks(v.mask))}, not with that of {_list(missing)}{root}"
    if missing:
        others = [r for r in missing if r != rank]
        came = "nothing that holds it was decompressed into this chunk, or assigned to it"
        why = came if others else "its own value was overwritten or never added"
        return f"on rank {rank} {name} lacks the contribution of {_list(missing)}: {why}"
    return f"on rank {rank} {name} also holds the contribution of {_list(_ranks(v.mask & ~mask))}"


def _replicas(p: Program, run: Run, t: Trace, sink: Sink) -> None:
    if p.kind not in ("all_reduce", "broadcast", "all_gather"):
        return
    first = t.outputs[0]
    for rank in range(1, t.world):
        for i, (a, b) in enumerate(zip(first, t.outputs[rank], strict=True)):
            if a is None or b is None or a.number == b.number:
                continue
            if run.cast(a.number)[0] == run.cast(b.number)[0] and a.basis == b.basis:
                continue
            t.divergent = True
            if p.divergent:
                return
            here, there = t.writers[0][i], t.writers[rank][i]
            owner, keeps = (0, here) if a.lossy < b.lossy else (rank, there)
            span = keeps or here or there or run.target.span
            other = there if keeps is here else here
            also: tuple[tuple[Span, str], ...] = (
                ((other, "the other ranks hold this"),) if other and other != span else ()
            )
            low, high = sorted((a.lossy, b.lossy))
            pair = f"ranks 0 and {rank} end with different bits in chunk {i}"
            if low < high:
                message = f"{pair}: rank {owner} holds {counted(low, 'lossy step')}, the other {high}"
                label = f"rank {owner} keeps this"
                help = "let the owner keep what the others receive: `let v = compress(q, x)`, then `x = decompress(v)`"
            else:
                message = f"{pair}: they are summed or rounded in different ways"
                label = "both end with this" if not also else f"rank {owner} ends with this"
                help = "add in the same order everywhere, as in a loop over all ranks, or let one rank add and send the sum"
            sink.error(
                "E307", f"{message}{run.where()}", span, label=label, help=f"{help}; or `allow divergent`", also=also
            )
            return


def _requirements(p: Program, run: Run, t: Trace, sink: Sink) -> None:
    names = {"lossy": t.lossy, "sends": t.sends, "steps": t.levels, "chunks": t.chunks_sent}
    names |= {n: v for (_, _, n), v in zip(p.axes, t.sizes, strict=True)}
    for r in p.requires:
        try:
            holds = _evaluate(r.test, names)
        except ZeroDivisionError:
            sink.error("E311", f"division by zero{run.where()}", r.test.span)
            continue
        if not holds:
            told = ", ".join(f"{k} = {v}" for k, v in names.items() if k in _names(r.test))
            sink.error("E308", f"`{r.test.span.text}` does not hold: {told}{run.where()}", r.span)


def _names(e: ast.Expr) -> set[str]:
    match e:
        case ast.Ref():
            return {e.name}
        case ast.Binary():
            return _names(e.left) | _names(e.right)
        case ast.Unary():
            return _names(e.operand)
    return set()


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "div": operator.floordiv,
    "mod": operator.mod,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}


def _evaluate(e: ast.Expr, names: dict[str, int]) -> int:
    match e:
        case ast.Number():
            return int(e.value)
        case ast.Ref():
            return names[e.name]
        case ast.Unary():
            v = _evaluate(e.operand, names)
            return int(not v) if e.op == "not" else -v
        case ast.Binary():
            return int(_OPERATORS[e.op](_evaluate(e.left, names), _evaluate(e.right, names)))
    raise AssertionError(e)
