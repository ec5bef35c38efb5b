"""A `.comp` definition with its parameters -> `Codec`: names, lengths and types checked, policies and state built into the graphs.

before:  compress(x) { scale = up(max(abs(x)) / 7)   code = quantize(x / nonzero(scale), -7, 7, round) }
after:   scale = round_to(mul(rmax(abs(clean x)), 1/7), bf16 up), NaN where the group is not finite
         code  = select(live, quantize(mul(clean x, rcp(select(eq(scale, 0), 1, scale))), -7, 7), 0)
"""

from __future__ import annotations

from ..diagnostics import fail
from .codec import DTYPES, Codec, Graph, Node
from .first import first_codec, wants_first
from .instance import Instance
from .scope import Bound


def compile_codec(bound: Bound, dtype: str) -> Codec:
    """Compile a bound compressor for tensors of `dtype` (f32, bf16 or f16). Raises CompileError (E2xx, E4xx, E501)."""
    assert dtype in DTYPES, dtype
    graph = Graph()
    top = Instance(bound, dtype, graph, None)
    leaf = top
    while leaf.nested:
        leaf = next(iter(leaf.nested.values()))
    only = top.parts.dtypes.get("only", ()) or leaf.parts.dtypes.get("only", ())
    if only and dtype not in only:
        fail(
            "E501",
            f"`{bound.definition.name}` takes {', '.join(only)} tensors, not {dtype}",
            bound.span or top.d.name_span,
        )
    _walk_checks(top)
    states = top.all_states()
    compress: dict[str, Node] = {}
    flags: dict[str, Node] = {}
    _collect(top, compress, flags)
    single = (
        len(top.fields) == 1
        and top.fields[0].type == dtype
        and top.fields[0].per == "array"
        and top.fields[0].length == top.group
    )
    cast = single and leaf.policy == "pass" and top.decompress.op == "field" and not states
    exact = tuple(leaf.parts.dtypes.get("exact", ()))
    first = first_codec(top, bound, dtype, leaf.basis) if wants_first(top) else None
    return Codec(
        name=bound.name,
        dtype=dtype,
        group=top.group,
        basis=leaf.basis,
        fields=tuple(top.fields),
        compress=compress,
        decompress=top.decompress,
        reopened=top.reopened,
        states=states,
        sender_updates=top.updates(sender=True),
        receiver_updates=top.updates(sender=False),
        flags=flags,
        claims=tuple(top.claims()),
        exact_for=exact,
        only=only,
        stochastic=any(n.op == "uniform" for n in graph_nodes(graph)),
        versioned=any(s.scope == "both" for s in states),
        cast=cast,
        nonfinite=leaf.policy,
        first=first,
        text=bound.definition.span.text,
    )


def graph_nodes(graph: Graph) -> list[Node]:
    return list(graph._made.values())


def _walk_checks(top: Instance) -> None:
    top.check_updates()
    for child in top.nested.values():
        _walk_checks(child)


def _collect(instance: Instance, compress: dict[str, Node], flags: dict[str, Node]) -> None:
    for name, node in instance.compressed.items():
        compress[instance.prefix + name] = node
    flags.update(instance.flags)
    for child in instance.nested.values():
        _collect(child, compress, flags)
