"""The codec of the first call after a reset, for compressors whose state says `first raw`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .codec import Codec, Field
from .scope import Bound

if TYPE_CHECKING:
    from .instance import Instance


def wants_first(top: Instance) -> bool:
    return any(s.first for s in top.parts.states) or any(wants_first(c) for c in top.nested.values())


def first_codec(top: Instance, bound: Bound, dtype: str, basis: int) -> Codec:
    """The codec of the first call after a reset: raw on the wire, and the states set from what all ranks then hold, in the codec's basis."""
    g, b = top.graph, top.build
    x = g.node("x", kind="f32", scope="array", length=top.group)
    sent = b.select(b.live, b.round_to(x, dtype, "nearest", False), b.const(0.0))
    received = g.node("field", (), ("raw",), kind="f32", scope="array", length=top.group)
    states = top.all_states()
    return Codec(
        name=f"first raw of {bound.name}",
        dtype=dtype,
        group=top.group,
        basis=basis,
        fields=(Field("raw", dtype, "array", top.group),),
        compress={"raw": sent},
        decompress=received,
        reopened=sent,
        states=states,
        sender_updates=top.updates(True, sent, {}),
        receiver_updates=top.updates(False, received, {}),
        versioned=any(s.scope == "both" for s in states),
    )
