"""torch.ops.coccl: the collectives as torch operators, for autograd and torch.compile. They take a group's name.

    y = torch.ops.coccl.all_reduce(x, group.group_name, compressor="int4")       a new tensor; differentiable
    torch.ops.coccl.all_reduce_(x, group.group_name, compressor="int4")          into x; not differentiable

`coccl_dsl.all_reduce` and its like call these wherever x needs a gradient or a graph is compiled. Backward runs the adjoint, with
`backward_compressor` (as forward, unless given): all_reduce <-> all_reduce, all_gather <-> reduce_scatter, all_to_all <-> all_to_all,
broadcast <-> reduce, send <-> recv. Every rank's loss counts: what backward gives is the gradient of the sum of all ranks' losses. Where all
ranks compute one and the same loss (tensor parallelism), `all_reduce(..., backward="identity")` leaves the gradient as it is.

Fake kernels resolve no group, so a graph can be compiled where there is none. A functional call whose result nobody uses stays in a compiled
graph: a rank that dropped it alone would leave the others waiting.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ..pipeline import op_factor
from ..runtime.operators import Arguments, define, fresh, gathered, resolve, scattered
from .calls import Asked, Compressors, bound_op, member, packed, unpacked
from .uneven import in_elements

OPS = torch.ops.coccl
BACKWARDS = ("all_reduce", "identity")


def _run(kind: str, x: torch.Tensor, a: Arguments, out: torch.Tensor | None) -> torch.Tensor:
    group = resolve(a["group_name"])
    if a.get("group_size", group.size()) != group.size():
        raise ValueError(f"{kind}: group_size={a['group_size']}, the group has {group.size()} ranks")
    if a.get("backward", "identity") not in BACKWARDS:
        raise ValueError(f"backward={a['backward']!r} is not one of {', '.join(BACKWARDS)}")
    asked = Asked(
        a.get("op", "sum"),
        unpacked(a["compressor"]),
        a.get("algorithm", "send_recv"),
        unpacked(a.get("mesh", "")) or None,
        a.get("root", 0),
        a.get("min_bytes", 0),
        ends=next(((end, a[end], a["tag"]) for end in ("source", "target") if end in a), None),
    )
    splits = {}
    if kind == "all_to_all":
        asked, splits = in_elements(x, group, a["output_splits"], a["input_splits"], a["capacity"], asked)
    return bound_op(kind, x, group, asked, splits, native=True)(x, out=out, **splits)


def _new(kind: str) -> Any:
    return lambda x, a: fresh(_run(kind, x, a, None), x)


def _into(kind: str) -> Any:
    def run(x: torch.Tensor, a: Arguments) -> None:
        _run(kind, x, a, a.get("out", x))

    return run


def _reduced(x: torch.Tensor, a: Arguments) -> torch.Tensor:
    y = fresh(_run("reduce", x, a, None), x)
    return y if resolve(a["group_name"]).rank() == a["root"] else y.zero_()


def _all_to_all(x: torch.Tensor, a: Arguments) -> torch.Tensor:
    return fresh(_run("all_to_all", x, a, None), x).reshape(_rows(x, a))


def _rows(x: torch.Tensor, a: Arguments) -> tuple[Any, ...]:
    splits = a["output_splits"]
    return tuple(x.shape) if splits is None else (sum(splits), *x.shape[1:])


def _send(x: torch.Tensor, a: Arguments) -> torch.Tensor:
    _run("send_recv", x, a, None)
    return x.new_zeros(())


def _recv(x: torch.Tensor, a: Arguments) -> torch.Tensor:
    return _run("send_recv", torch.empty_like(x, memory_format=torch.contiguous_format), a, None)


def _recv_(x: torch.Tensor, a: Arguments) -> None:
    _run("send_recv", x, a, None)


def functional(kind: str, x: torch.Tensor, group: dist.ProcessGroup | None, asked: Asked, **splits: Any) -> Any:
    """The operator's call for what a function of `functions` asks for. Splits there are elements."""
    pg = group if torch.compiler.is_compiling() and group is not None else member(group)
    name, how = pg.group_name, (packed(asked.compressor), asked.algorithm, packed(asked.mesh))
    match kind:
        case "all_reduce":
            return OPS.all_reduce(x, name, asked.op, *how)
        case "reduce_scatter":
            return OPS.reduce_scatter_tensor(x, name, pg.size(), asked.op, *how)
        case "all_gather":
            return OPS.all_gather_into_tensor(x, name, pg.size(), *how)
        case "broadcast":
            return OPS.broadcast(x, name, asked.root, *how)
        case "reduce":
            return OPS.reduce(x, name, asked.root, asked.op, *how)
    if not splits:
        rows = x.reshape(pg.size(), -1)
        return OPS.all_to_all_single(rows, name, None, None, 0, asked.min_bytes, *how).reshape(x.shape)
    given = splits["output_splits"], splits["input_splits"], asked.pair
    return OPS.all_to_all_single(x.reshape(-1), name, *given, asked.min_bytes, *how)


def into(
    kind: str, x: torch.Tensor, out: torch.Tensor, group: dist.ProcessGroup | None, asked: Asked, splits: Any
) -> None:
    """The in-place operator's call for what a function of `c10d` asks for."""
    pg = group if torch.compiler.is_compiling() and group is not None else member(group)
    name, how = pg.group_name, (packed(asked.compressor), asked.algorithm, packed(asked.mesh))
    match kind:
        case "all_reduce":
            OPS.all_reduce_(x, name, asked.op, *how)
        case "reduce_scatter":
            OPS.reduce_scatter_tensor_out(x, out, name, asked.op, *how)
        case "all_gather":
            OPS.all_gather_into_tensor_out(x, out, name, *how)
        case "all_to_all":
            OPS.all_to_all_single_out(x, out, name, *splits, asked.min_bytes, *how)
        case "broadcast":
            OPS.broadcast_(x, name, asked.root, *how)
        case "reduce":
            OPS.reduce_(x, name, asked.root, asked.op, *how)


class _CopyToGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *how: str) -> torch.Tensor:
        ctx.how = how
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name, *how = ctx.how
        return (OPS.all_reduce(gradients[0].contiguous(), name, "sum", *how), None, None, None, None)


def copy_to_group(
    x: torch.Tensor,
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    group: dist.ProcessGroup | None = None,
    *,
    mesh: dict[str, int] | None = None,
) -> torch.Tensor:
    """x as it is; in backward its gradient is summed over the group, with `compressor`. For what all ranks of a tensor-parallel group hold alike
    and each uses for its own part; the way back is `torch.ops.coccl.all_reduce(..., backward="identity")`."""
    pg = group if torch.compiler.is_compiling() and group is not None else member(group)
    return _CopyToGroup.apply(x, pg.group_name, packed(compressor), algorithm, packed(mesh))


# ---------------------------------------------------------------- backward


def _back(a: Arguments) -> str:
    return a["backward_compressor"] or a["compressor"]


def _scaled(a: Arguments, g: torch.Tensor) -> torch.Tensor:
    """The gradient times the op's factor, for adjoints that have no op."""
    size = a.get("group_size") or (resolve(a["group_name"]).size() if a["op"] == "avg" else 1)
    factor = op_factor(a["op"], size)
    return g if factor is None else g * factor


def _of_all_reduce(a: Arguments, g: torch.Tensor) -> torch.Tensor:
    if a["backward"] == "identity":
        return _scaled(a, g)
    return OPS.all_reduce(g, a["group_name"], a["op"], _back(a), a["algorithm"], a["mesh"])


def _of_reduce_scatter(a: Arguments, g: torch.Tensor) -> torch.Tensor:
    return OPS.all_gather_into_tensor(_scaled(a, g), a["group_name"], a["group_size"], _back(a), "auto", _mesh(a))


def _of_all_gather(a: Arguments, g: torch.Tensor) -> torch.Tensor:
    return OPS.reduce_scatter_tensor(g, a["group_name"], a["group_size"], "sum", _back(a), "auto", _mesh(a))


def _of_all_to_all(a: Arguments, g: torch.Tensor) -> torch.Tensor:
    turned = a["input_splits"], a["output_splits"], a["capacity"], a["min_bytes"]
    return OPS.all_to_all_single(g, a["group_name"], *turned, _back(a), a["algorithm"], a["mesh"])


def _of_broadcast(a: Arguments, g: torch.Tensor) -> torch.Tensor:
    return OPS.reduce(g, a["group_name"], a["root"], "sum", _back(a), "auto", _mesh(a))


def _of_reduce(a: Arguments, g: torch.Tensor) -> torch.Tensor:
    return OPS.broadcast(_scaled(a, g), a["group_name"], a["root"], _back(a), "auto", _mesh(a))


def _of_send(a: Arguments, g: torch.Tensor) -> torch.Tensor:
    return OPS.recv(g.new_empty(a["shape"]), a["group_name"], a["target"], _back(a), a["tag"])


def _of_recv(a: Arguments, g: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(g) + OPS.send(g, a["group_name"], a["source"], _back(a), a["tag"])


def _mesh(a: Arguments) -> str:
    """Of an adjoint that `auto` picks, to which axes that only the forward's own text has say nothing."""
    return a["mesh"] if not a["mesh"] or set(unpacked(a["mesh"])) == {"node", "local"} else ""


# ---------------------------------------------------------------- the operators

_HOW = "str compressor='int8', str algorithm='auto', str mesh=''"
_BACK = ", str backward_compressor=''"
_SPLITS = "SymInt[]? output_splits=None, SymInt[]? input_splits=None, SymInt capacity=0, int min_bytes=0, "
_PAIR = "str compressor='int8', int tag=0"


def _same(x: torch.Tensor, a: Arguments) -> tuple[Any, ...]:
    return tuple(x.shape)


def _define() -> None:
    group, sized, root = "str group_name, ", "str group_name, int group_size, ", "str group_name, int root=0, "
    op = "str op='sum', "
    define(
        "all_reduce",
        f"{group}{op}{_HOW}{_BACK}, str backward='all_reduce'",
        _new("all_reduce"),
        shape=_same,
        adjoint=_of_all_reduce,
    )
    define("all_reduce_", f"{group}{op}{_HOW}", _into("all_reduce"), writes="x")
    define(
        "reduce_scatter_tensor",
        f"{sized}{op}{_HOW}{_BACK}",
        _new("reduce_scatter"),
        shape=lambda x, a: scattered(x, a["group_size"]),
        adjoint=_of_reduce_scatter,
    )
    define("reduce_scatter_tensor_out", f"{group}{op}{_HOW}", _into("reduce_scatter"), writes="out")
    define(
        "all_gather_into_tensor",
        f"{sized}{_HOW}{_BACK}",
        _new("all_gather"),
        shape=lambda x, a: gathered(x, a["group_size"]),
        adjoint=_of_all_gather,
    )
    define("all_gather_into_tensor_out", f"{group}{_HOW}", _into("all_gather"), writes="out")
    define("all_to_all_single", f"{group}{_SPLITS}{_HOW}{_BACK}", _all_to_all, shape=_rows, adjoint=_of_all_to_all)
    define("all_to_all_single_out", f"{group}{_SPLITS}{_HOW}", _into("all_to_all"), writes="out")
    define("broadcast", f"{root}{_HOW}{_BACK}", _new("broadcast"), shape=_same, adjoint=_of_broadcast)
    define("broadcast_", f"{root}{_HOW}", _into("broadcast"), writes="x")
    define("reduce", f"{root}{op}{_HOW}{_BACK}", _reduced, shape=_same, adjoint=_of_reduce)
    define("reduce_", f"{root}{op}{_HOW}", _into("reduce"), writes="x")
    define("send", f"{group}int target, {_PAIR}{_BACK}", _send, shape=lambda x, a: (), adjoint=_of_send)
    define("recv", f"{group}int source, {_PAIR}{_BACK}", _recv, shape=_same, adjoint=_of_recv)
    define("recv_", f"{group}int source, {_PAIR}", _recv_, writes="x")  # fmt: skip


_define()
