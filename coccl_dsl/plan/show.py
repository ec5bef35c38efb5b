"""A plan as text and as JSON.

    launch input + open(q)* -> q                                     one kernel launch of one slice
        w4 <- input[2] + open w1                                     a Fold: what it makes, from what
    step 1
        send w4 to 1; receive w6 from 3

`input[i]` and `output[i]` are chunks of the user's tensors, in order; `w4` is a wire, `t0` a float32 chunk that the plan keeps outside a
kernel. A dense sink `through q` gets decompress(compress(q, sum)), what the receivers of the wire will hold. Where a peer's memory is mapped,
`w4 at 1` is stored there by the kernel and the step only signals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..wire.codec import TYPES, Codec
from ..wire.layout import bits_per_value, wire_bytes
from .cut import cut
from .ops import SCHEMA, Copy, Dense, Exchange, Fold, Launch, Plan, Remote, StateRef, Transfer

# Elements of a call that byte counts are given for, unless said otherwise.
COUNT = 1 << 20


def fitting(plan: Plan, count: int) -> int:
    """The largest number of elements up to `count` that a call's input can have."""
    return count // plan.world * plan.world if plan.kind in ("reduce_scatter", "all_to_all") else count


def sent_bytes(plan: Plan, count: int) -> tuple[int, int]:
    """Bytes that this rank sends in a call whose input has `count` elements, and what the same messages take in the tensor's dtype."""
    lengths = cut(plan, count).lengths
    sent = plain = 0
    for step in plan.steps:
        for t in step.sends if isinstance(step, Exchange) else ():
            for w in t.wires:
                length = lengths[plan.wires[w].extent]
                sent += wire_bytes(plan.codecs[plan.wires[w].codec], length)
                plain += length * TYPES[plan.dtype][0] // 8
    return sent, plain


def scratch_bytes(plan: Plan, count: int) -> int:
    """Bytes of the float32 chunks that the plan keeps outside a kernel."""
    lengths = cut(plan, count).lengths
    return 4 * sum(-(-lengths[s.extent] // max(s.basis, 1)) * max(s.basis, 1) for s in plan.scratch.values())


def ratio(sent: int, plain: int) -> str:
    """`3.94x less`, and so on."""
    if not sent:
        return "nothing is sent"
    if abs(plain / sent - 1) < 0.005:
        return "the same"
    return f"{plain / sent:.2f}x less" if sent < plain else f"{sent / plain:.2f}x more"


def headline(plan: Plan) -> str:
    mesh = ", ".join(f"{name}={size}" for name, size in plan.mesh) if len(plan.mesh) > 1 else ""
    world = f"rank {plan.rank} of {plan.world}" + (f" ({mesh})" if mesh else "")
    root = f"root {plan.root}   " if plan.kind in ("broadcast", "reduce") else ""
    return f"{plan.name} : {plan.kind}   {world}   {root}{plan.dtype}   {plan.op}"


def summary(plan: Plan, capacity: int | None = None, *, lossy: int | None = None) -> str:
    """What a call costs on this rank, for an input of `capacity` elements (2^20 unless given). lossy: steps on the worst path, if known."""
    count = fitting(plan, COUNT if capacity is None else capacity)
    exchanges = [s for s in plan.steps if isinstance(s, Exchange)]
    sends, receives = sum(len(e.sends) for e in exchanges), sum(len(e.recvs) for e in exchanges)
    sent, plain = sent_bytes(plan, count)
    rows = [
        ("messages", f"{sends} sent, {receives} received, in {plan.levels} step{'s' * (plan.levels != 1)}"),
        ("launches", f"{plan.launches} a slice"),
        ("slices", ", ".join(map(str, plan.depths))),
        (
            "bytes sent",
            f"{sent:,} of {plain:,} uncompressed, {ratio(sent, plain)}, for {count:,} {plan.dtype} elements",
        ),
        ("scratch", f"{scratch_bytes(plan, count):,} bytes"),
    ]
    if lossy is not None:
        rows.insert(1, ("lossy steps", f"{lossy} on the worst path"))
    rows += [("compressor" + (f" {key}" if key else ""), describe(codec)) for key, codec in plan.codecs.items()]
    return "\n".join([headline(plan), *table(rows)])


def table(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Two columns, indented."""
    kept = list(rows)
    width = max(len(name) for name, _ in kept)
    return [f"  {name:<{width}}  {value}" for name, value in kept]


def describe(codec: Codec) -> str:
    return f"{codec.name}, {bits_per_value(codec):g} bits a value"


# ---------------------------------------------------------------- text


def text(plan: Plan) -> str:
    """The whole plan, readable."""
    lines = [headline(plan), ""]
    lines.append(f"input   {_chunks(plan.buffers.inputs)}")
    lines.append(f"output  {_chunks(plan.buffers.outputs)}")
    lines += ["", "compressors"]
    for key, codec in plan.codecs.items():
        fields = ", ".join(f"{f.name} {_shape(f.type, f.per, f.length)}" for f in codec.fields)
        lines.append(f"  {key or '(bare send)'} = {describe(codec)}: {fields}")
        lines += [f"      state {s.name} : {s.dtype} {s.scope}" for s in codec.states]
    lines += ["", "steps"]
    for step in plan.steps:
        lines += [f"  {line}" for line in _step(plan, step)]
    lines += ["", "buffers"]
    if not plan.slots:
        lines.append("  none")
    for i, members in enumerate(plan.slots):
        lines.append(f"  slot {i}: " + ", ".join(_member(plan, kind, id) for kind, id in members))
    lines += [f"  {_state(ref)} of {key or 'a bare send'}" for ref, key in plan.states.items()]
    if plan.credits is not None:
        awaits, grants = (", ".join(map(str, r)) or "none" for r in (plan.credits.awaits, plan.credits.grants))
        lines.append(f"  credits: awaited of {awaits}; granted to {grants}")
    return "\n".join(lines) + "\n"


def _shape(type: str, per: str, length: int) -> str:
    return f"{type}[{length}]" if per == "array" else f"{type} a {per}"


def _chunks(extents: tuple[int, ...]) -> str:
    return ("chunks " if len(extents) > 1 else "chunk ") + ", ".join(map(str, extents)) if extents else "none"


def _member(plan: Plan, kind: str, id: int) -> str:
    if kind == "wire":
        info = plan.wires[id]
        return f"w{id} ({info.codec or plan.dtype}, chunk {info.extent})"
    kept = plan.scratch[id]
    return f"t{id} (float32{f' in h{kept.basis}' if kept.basis else ''}, chunk {kept.extent})"


def _state(ref: StateRef) -> str:
    return f"state (site {ref.site}, chunk {ref.extent}, compressed on rank {ref.owner})"


def _step(plan: Plan, step: Any) -> Iterator[str]:
    if isinstance(step, Launch):
        yield f"launch {step.signature}"
        for f in step.folds:
            yield "    " + fold_text(plan, f)
        for i, o in step.copies:
            yield f"    output[{o}] <- input[{i}] as it is"
    elif isinstance(step, Exchange):
        yield f"step {step.level}"
        yield "    " + exchange_text(step)
    elif isinstance(step, Copy):
        yield "copy " + ", ".join(f"output[{o}] <- input[{i}]" for i, o in step.pairs)
    else:
        yield "commit: states written in this call become current"


def exchange_text(step: Exchange) -> str:
    moved = [f"copy w{w} to {r.peer}" for w, r in step.copies]
    moved += [f"signal {t.peer} ({_wires(t)})" if t.direct else f"send {_wires(t)} to {t.peer}" for t in step.sends]
    for t in step.recvs:
        moved.append(f"await {t.peer} ({_wires(t)})" if t.direct else f"receive {_wires(t)} from {t.peer}")
    return "; ".join(moved) or "nothing on this rank"


def _wires(t: Transfer) -> str:
    return ", ".join(f"w{w}" for w in t.wires)


def _dense(d: Dense) -> str:
    return f"t{d.index}" if d.role == "scratch" else f"{d.role}[{d.index}]"


def fold_text(plan: Plan, f: Fold) -> str:
    """`w9, output[1] through q <- input[1] + open w5, w7`."""
    made = [f"w{f.wire}"] if f.wire is not None and f.local else []
    made += [f"w{f.wire} at {r.peer}" for r in f.remote]
    for s in f.sinks:
        through = f" through {f.out_codec or plan.dtype}" if s.opened and f.out_codec is not None else ""
        made.append(_dense(s.place) + through)
    sources = [_dense(d) for d in f.dense]
    if f.opened:
        sources.append("open " + ", ".join(f"w{o.wire}" for o in f.opened))
    line = f"{', '.join(made)} <- {' + '.join(sources)}"
    if f.basis:
        line += f"   in h{f.basis}"
    if f.state is not None:
        line += f"   with {_state(f.state)}"
    for o in f.opened:
        if o.state is not None:
            line += f"   w{o.wire} {'updates' if o.update else 'reads'} {_state(o.state)}"
    return line


# ---------------------------------------------------------------- JSON


def to_json(plan: Plan) -> dict[str, Any]:
    """Everything but the compressors' graphs. `schema` counts up when a reader of the last form would go wrong."""
    return {
        "schema": SCHEMA,
        "name": plan.name,
        "kind": plan.kind,
        "rank": plan.rank,
        "world": plan.world,
        "mesh": [{"size": name, "value": value} for name, value in plan.mesh],
        "dtype": plan.dtype,
        "op": plan.op,
        "root": plan.root,
        "levels": plan.levels,
        "launches": plan.launches,
        "alignment": plan.alignment,
        "depths": list(plan.depths),
        "buffers": {
            "inputs": list(plan.buffers.inputs),
            "outputs": list(plan.buffers.outputs),
            "aliases": list(plan.buffers.aliases),
        },
        "codecs": {key: _codec_json(c) for key, c in plan.codecs.items()},
        "wires": [{"id": i, "codec": w.codec, "chunk": w.extent, "slot": w.slot} for i, w in plan.wires.items()],
        "scratch": [{"id": i, "chunk": s.extent, "basis": s.basis, "slot": s.slot} for i, s in plan.scratch.items()],
        "slots": [[{"kind": kind, "id": id} for kind, id in members] for members in plan.slots],
        "states": [{**_state_json(ref), "codec": key} for ref, key in plan.states.items()],
        "mapped": sorted(plan.mapped),
        "credits": {"awaits": list(plan.credits.awaits), "grants": list(plan.credits.grants)} if plan.credits else None,
        "steps": [_step_json(s) for s in plan.steps],
    }


def _codec_json(c: Codec) -> dict[str, Any]:
    return {
        "name": c.name,
        "group": c.group,
        "basis": c.basis,
        "bits": bits_per_value(c),
        "fields": [{"name": f.name, "type": f.type, "per": f.per, "length": f.length} for f in c.fields],
        "states": [{"name": s.name, "dtype": s.dtype, "scope": s.scope} for s in c.states],
        "versioned": c.versioned,
        "stochastic": c.stochastic,
        "first": _codec_json(c.first) if c.first is not None else None,
    }


def _state_json(ref: StateRef) -> dict[str, Any]:
    return {"site": ref.site, "chunk": ref.extent, "owner": ref.owner}


def _dense_json(d: Dense) -> dict[str, Any]:
    return {"role": d.role, "index": d.index, "basis": d.basis}


def _step_json(step: Any) -> dict[str, Any]:
    if isinstance(step, Launch):
        return {
            "do": "launch",
            "signature": str(step.signature),
            "folds": [_fold_json(f) for f in step.folds],
            "copies": [{"input": i, "output": o} for i, o in step.copies],
        }
    if isinstance(step, Exchange):
        sends = [{"to": t.peer, "wires": list(t.wires), "direct": t.direct} for t in step.sends]
        receives = [{"from": t.peer, "wires": list(t.wires), "direct": t.direct} for t in step.recvs]
        copies = [{"wire": w, **_remote_json(r)} for w, r in step.copies]
        return {"do": "exchange", "level": step.level, "sends": sends, "receives": receives, "copies": copies}
    if isinstance(step, Copy):
        return {"do": "copy", "pairs": [{"input": i, "output": o} for i, o in step.pairs]}
    return {"do": "commit"}


def _remote_json(r: Remote) -> dict[str, Any]:
    return {"peer": r.peer, "level": r.level, "position": r.position}


def _fold_json(f: Fold) -> dict[str, Any]:
    return {
        "chunk": f.extent,
        "dense": [_dense_json(d) for d in f.dense],
        "opened": [
            {"wire": o.wire, "state": _state_json(o.state) if o.state else None, "update": o.update} for o in f.opened
        ],
        "basis": f.basis,
        "in_codec": f.in_codec,
        "out_codec": f.out_codec,
        "wire": f.wire,
        "local": f.local,
        "remote": [_remote_json(r) for r in f.remote],
        "sinks": [{**_dense_json(s.place), "opened": s.opened} for s in f.sinks],
        "key": f"{f.key:016x}",
        "state": _state_json(f.state) if f.state else None,
    }
