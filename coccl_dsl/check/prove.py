"""How a run ended, against what the header promises: postcondition, same bits on all replicas, `require` lines."""

from __future__ import annotations

from ..diagnostics import Sink, Span
from ..lang import ast
from ..lang.program import Program
from .run import Run
from .values import Trace, Value


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


def _postcondition(p: Program, run: Run, t: Trace, sink: Sink) -> bool:
    wrong = False
    for rank, outputs in enumerate(t.outputs):
        for i, v in enumerate(outputs):
            want = _expected(p.kind, t.world, t.params, rank, i)
            if want is None:
                continue
            problem = _problem(p, v, want, rank, i)
            if problem is None:
                continue
            wrong = True
            span = t.writers[rank][i] or run.target.span
            label = "last written here" if t.writers[rank][i] else "never written"
            sink.error("E303", f"{problem}{run.where()}", span, label=label)
            if len(sink.found) >= 4:
                return True
    return wrong


def _problem(p: Program, v: Value | None, want: tuple[int, int], rank: int, i: int) -> str | None:
    extent, mask = want
    if v is None:
        return f"chunk {i} of the result has no value on rank {rank}"
    if v.extent != extent:
        return f"rank {rank} ends with chunk {v.extent} where chunk {extent} belongs"
    missing, extra = mask & ~v.mask, v.mask & ~mask
    if missing:
        ranks = _ranks(missing)
        others = [r for r in ranks if r != rank]
        why = f"no send brought it from rank {others[0]}" if others else "its own value was overwritten or never added"
        return f"on rank {rank} chunk {extent} lacks the contribution of {_list(ranks)}: {why}"
    if extra:
        return f"on rank {rank} chunk {extent} also holds the contribution of {_list(_ranks(extra))}"
    return None


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
            sink.error(
                "E307",
                f"ranks 0 and {rank} end with different bits in chunk {i}: rank {owner} holds {low} lossy steps, the other {high}{run.where()}",
                span,
                label=f"rank {owner} keeps this",
                help="let the owner keep what the others receive: `let v = compress(q, x)`, then `x = decompress(v)`; or `allow divergent`",
                also=also,
            )
            return


def _requirements(p: Program, run: Run, t: Trace, sink: Sink) -> None:
    names = {"lossy": t.lossy, "sends": t.sends, "steps": t.levels, "chunks": t.chunks_sent}
    names |= {n: v for (_, _, n), v in zip(p.axes, t.sizes, strict=True)}
    for r in p.requires:
        if not _evaluate(r.test, names, sink):
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


def _evaluate(e: ast.Expr, names: dict[str, int], sink: Sink) -> int:
    match e:
        case ast.Number():
            return int(e.value)
        case ast.Ref():
            if e.name not in names or e.index:
                sink.error("E201", f"unknown name `{e.name}`", e.span, help=f"`require` knows {', '.join(names)}")
                return 1
            return names[e.name]
        case ast.Unary():
            v = _evaluate(e.operand, names, sink)
            return int(not v) if e.op == "not" else -v
        case ast.Binary():
            a, b = _evaluate(e.left, names, sink), _evaluate(e.right, names, sink)
            table = {
                "+": a + b,
                "-": a - b,
                "*": a * b,
                "==": a == b,
                "!=": a != b,
                "<": a < b,
                "<=": a <= b,
                ">": a > b,
                ">=": a >= b,
                "and": a and b,
                "or": a or b,
            }
            if e.op in ("div", "mod"):
                if b == 0:
                    sink.error("E311", "division by zero", e.span)
                    return 1
                return a // b if e.op == "div" else a % b
            if e.op in table:
                return int(table[e.op])
    sink.error("E204", "`require` compares numbers", e.span)
    return 1
