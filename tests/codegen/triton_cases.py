"""Folds run by the Triton back end and by the reference, compared bit for bit.

As a program it prints one JSON line a case: on `cpu` with TRITON_INTERPRET=1 (test_triton_interpreter.py), or on a GPU:

    python tests/codegen/triton_cases.py cuda 0 1           # device, which shard of how many, words that a case's name must have

Each case is one launch with a fold for each of SIZES, so that whole tiles, small ones and short frames all occur.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import torch

from coccl_dsl.codegen.eager import EagerBackend, compress, rotate
from coccl_dsl.codegen.launch import Backend, FoldArgs, OpContext, Place, StatePlaces
from coccl_dsl.diagnostics import Source
from coccl_dsl.lang.parse import parse_binding, parse_comp
from coccl_dsl.plan.ops import Signature
from coccl_dsl.wire.codec import FRAME, Codec
from coccl_dsl.wire.compile import compile_codec
from coccl_dsl.wire.layout import frame_bytes, frame_runs, live_elements, wire_bytes
from coccl_dsl.wire.scope import Scope, bind

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
MADE_ONCE = "kernels are made once"
SIZES = (1, 100, 128, 129, 4097, 33000)
# Fewer where another dtype or direction of the same compressor runs them all: the interpreter takes its time.
SHORT, LONG = (129, 4097), (1, 100, 33000)

# Compressors that use what the shipped ones do not.
EXTRA = """
compressor rms8(group: int = 64) {
  wire { code : s8[group]  scale : f16 }
  nonfinite scale
  flag loud when any(abs(x) > 3)
  compress(x) {
    scale = sqrt(mean(x * x)) / 32 + rsqrt(max(abs(x)) + 1) * 0
    code = quantize(x / nonzero(scale), -127, 127)
  }
  decompress { yield code * scale }
}
compressor spike(group: int = 64) {
  wire { code : s2[group]  where : u8  value : bf16  scale : e5m2 }
  nonfinite value
  compress(x) {
    let p = argmax(abs(x))
    let rest = put(x, p, 0)
    where = p
    value = at(x, p)
    scale = max(abs(rest))
    code = quantize(rest / nonzero(scale), -1, 1)
  }
  decompress { yield put(code * scale, where, value) }
}
compressor sparse(group: int = 128, k: int = 8) {
  wire { place : u8[k]  value : f16[k] }
  nonfinite pass
  compress(x) {
    let chosen = first(k, top(abs(x), k))
    place = chosen
    value = gather(x, chosen)
  }
  decompress { yield scatter(place, value) }
}
compressor mx8(group: int = 32) {
  wire { value : e4m3[group]  scale : e8m0 }
  nonfinite scale
  compress(x) {
    scale = ldexp(1, exponent(max(abs(x))) - 8)
    value = x / scale
  }
  decompress { yield value * scale }
}
compressor nv4(group: int = 16) {
  wire { code : e2m1[group]  scale : e4m3  whole : f32 frame }
  nonfinite scale
  compress(x) {
    whole = max(abs(x)) / 2688
    scale = max(abs(x)) / 6 / nonzero(whole)
    code = x / nonzero(scale * whole)
  }
  decompress { yield code * (scale * whole) }
}
compressor frame_mean(group: int = 256) {
  wire { code : u8[group]  centre : f32 frame  low : f32 frame  high : f32 frame }
  nonfinite code code = 255
  compress(x) {
    centre = sum(x) * 0.000030517578125
    low = min(x)
    high = max(x)
    code = quantize((x - low) * (254 / nonzero(high - low)), 0, 254)
  }
  decompress { yield code * ((high - low) * 0.00393700787401574803) + low + centre * 0 }
}
compressor planes6(group: int = 32) {
  wire { low : u4[group]  high : u2[group]  odd : u2[12]  scale : bf16 }
  nonfinite scale
  compress(x) {
    scale = up(max(abs(x)) / 31)
    let code = quantize(x / nonzero(scale), -31, 31) + 32
    low = plane(code, 0, 4)
    high = plane(code, 4, 2)
    odd = plane(concat(slice(code, 2, 10), slice(code, 20, 24)), 1, 2)
  }
  decompress { yield (low + (high << 4) - 32) * scale }
}
compressor lowest(group: int = 32) {
  wire { tail : f32[group]  low : bf16  half : f16  four : e4m3  two : e5m2  power : e8m0  small : e2m1[group]  each : e4m3[group] }
  nonfinite low
  compress(x) {
    low = down(min(x))
    half = down(max(x))
    four = down(min(x) * 0.3)
    two = down(max(x) * 3)
    power = down(max(x))
    small = down(x)
    each = down(x)
    tail = x - low
  }
  decompress { yield small + each + (low + half) + (four + two) + power + tail }
}
compressor joined(group: int = 16) {
  wire { code : u4[group]  low : f32  mean : f32 }
  nonfinite low
  compress(x) {
    let y = whole(x + 1)
    low = min(y) + argmax(y)
    mean = mean(y) + sum(select(top(y, 3), y, 0))
    code = quantize(y - low, 0, 15)
  }
  decompress { yield code + low + max(code) + mean }
}
compressor told(group: int = 32) {
  wire { code : u8[group]  count : u8 }
  nonfinite pass
  flag many code count = 255 when sum(select(x > 1, 1, 0)) > 4
  compress(x) {
    code = quantize(x * 8, -100, 100) + 128
    count = sum(select(x > 1, 1, 0))
  }
  decompress { yield (code - 128) * 0.125 }
}
compressor turned(group: int = 64) {
  wire { code : s8[group]  scale : f32 }
  nonfinite scale
  compress(x) {
    let y = hadamard(x, 16)
    scale = up(max(abs(y)) / 127)
    code = quantize(y / nonzero(scale), -127, 127)
  }
  decompress { yield hadamard(code * scale, 16) }
}
compressor negated(group: int = 32) {
  wire { code : bf16[group] }
  nonfinite pass
  compress(x) { code = -round(x) }
  decompress { yield -code }
}
compressor arithmetic(group: int = 32) {
  wire { a : u16[group]  b : f32[group] }
  nonfinite pass
  compress(x) {
    let i = bits(x)
    a = ((i >> 13) ^ (i mod 7)) + (i div 3) + (iota(group) & 5)
    b = select(x > 0.5 and not (x > 2), floor(x * 3), clamp(round(x * 2.5), -2, max(x, -1))) + sign(x) * min(x, 0.25) / (abs(x) + 1)
  }
  decompress { yield b }
}
"""


@cache
def make(text: str, dtype: str) -> Codec:
    scope = Scope()
    scope.add(parse_comp(Source("extra.comp", EXTRA)).compressors, Scope())
    return compile_codec(bind(parse_binding(text), scope), dtype)


@dataclass(frozen=True)
class Case:
    """dense, sinks as in Signature; `opens` wires a fold (0: none, -1: differing numbers); `first`: the codec of the first call."""

    dtype: str
    dense: tuple[tuple[str, int], ...] = ()
    opened: str = ""
    opens: int = 1
    update: bool = False
    basis: int = 0
    out: str = ""
    wire: bool = True
    sinks: tuple[tuple[str, int, bool], ...] = ()
    factor: float | None = None
    odd: bool = False
    first: bool = False
    sizes: tuple[int, ...] = SIZES

    @property
    def name(self) -> str:
        dense = "+".join(f"{r}{b or ''}" for r, b in self.dense)
        opened = f"{self.opens}x{self.opened}" if self.opened else ""
        sinks = ",".join(f"{r}{b or ''}{'!' if o else ''}" for r, b, o in self.sinks)
        extras = [k for k in ("update", "odd", "first") if getattr(self, k)] + (
            [f"h{self.basis}"] if self.basis else []
        )
        return " ".join(
            t
            for t in (
                self.dtype,
                dense,
                opened,
                "->",
                self.out,
                sinks,
                *extras,
                f"x{self.factor}" * (self.factor is not None),
            )
            if t
        )


IN, OUT, OPENED = ("input", 0), ("output", 0, False), ("output", 0, True)


def cases() -> Iterator[Case]:
    for dtype in DTYPES:
        sizes = SIZES if dtype == "bf16" else SHORT
        for q in ("int8", "int4", "raw") if dtype == "f16" else ("int8", "int4", "raw", "bf16"):
            yield Case(dtype, (IN,), out=q, sizes=sizes)
            yield Case(dtype, opened=q, sinks=(OUT,), sizes=sizes)
            yield Case(dtype, (IN,), opened=q, opens=-1, out=q, sinks=(OPENED,), factor=0.25 if q == "int8" else None)
        for q in ("int8_h32",) if dtype == "f16" else ("int8_h32", "int4_h32"):
            yield Case(dtype, (IN,), out=q, basis=32, sizes=sizes)
            yield Case(
                dtype, (IN,), opened=q, opens=-1, out=q, basis=32, sinks=(OPENED, ("scratch", 32, False)), sizes=sizes
            )
    for q in ("int8(round=stochastic)", "int4(group=32, round=stochastic, scale_type=f32)", "uint4(round=stochastic)"):
        yield Case("bf16", (IN,), out=q)
    yield Case("f32", (IN, ("scratch", 0)), sinks=(OUT, ("scratch", 0, False)), factor=1 / 3)
    yield Case(
        "bf16", (("scratch", 32), IN), opened="int8", opens=2, basis=32, sinks=(("scratch", 32, False), OUT), odd=True
    )
    yield Case("bf16", (IN,), opened="int8(group=256)", out="int4(group=64)", sinks=(OPENED, OUT))
    yield Case("bf16", (("scratch", 0),), out="int4_h32", sinks=(OPENED,), odd=True)
    yield Case("f16", opened="int8_h32", opens=3, sinks=(OUT,), odd=True)
    yield Case("f32", (IN,), out="int8(group=2048)", wire=False, sinks=(OPENED,))
    for dtype in ("bf16", "f32"):
        yield Case(dtype, (IN,), out="error_feedback(int4)", sinks=(OPENED,))
        yield Case(dtype, (IN,), out="error_feedback(int8_h32)", basis=32)
        for first in (False, True):
            yield Case(dtype, (IN,), out="weight_delta4", sinks=(OPENED,), first=first, sizes=LONG)
            yield Case(dtype, opened="weight_delta4", update=True, sinks=(OUT,), first=first, sizes=LONG)
    yield Case("bf16", (IN,), opened="weight_delta4(group=128)", opens=2, out="int4", sinks=(OPENED,))
    for q in (
        "rms8",
        "spike",
        "mx8",
        "nv4",
        "frame_mean",
        "planes6",
        "lowest",
        "joined",
        "told",
        "turned",
        "arithmetic",
        "negated",
        "sparse",
    ):
        yield Case("f32", (IN,), out=q, sinks=(OPENED,), sizes=LONG)
        yield Case("bf16", opened=q, sinks=(OUT,), sizes=SHORT)


# ---------------------------------------------------------------- one case


class Arena:
    """One buffer with 16-byte aligned places, which bytes of it say nothing, and where scratch is, whose NaNs may be any."""

    def __init__(self, data: torch.Tensor):
        self.data, self.used = data, 0
        self.gaps: list[tuple[int, int]] = []
        self.scratch: list[tuple[int, int]] = []

    def place(self, size: int) -> Place:
        made = Place(self.data, self.used)
        self.used += (size + 15) // 16 * 16 + 32
        assert self.used <= self.data.numel(), "the arena is too small"
        return made

    def holding(self, values: torch.Tensor) -> Place:
        raw = values.contiguous().view(torch.uint8)
        made = self.place(raw.numel())
        self.data[made.offset : made.offset + raw.numel()] = raw.to(self.data.device)
        return made

    def wire(self, codec: Codec, length: int) -> Place:
        made = self.place(wire_bytes(codec, length))
        n = live_elements(codec, length)
        for begin in range(0, n, FRAME):
            runs, size = frame_runs(codec, min(FRAME, n - begin))
            at = made.offset + begin // FRAME * frame_bytes(codec)
            ends = [r.offset + r.bytes for r in runs]
            self.gaps += [(at + a, at + b) for a, b in zip(ends, [*(r.offset for r in runs[1:]), size], strict=True)]
        return made

    def settled(self) -> torch.Tensor:
        out = self.data.cpu().clone()
        for a, b in self.gaps:
            out[a:b] = 0
        for a, b in self.scratch:
            v = out[a:b].view(torch.float32)
            v[v.isnan()] = torch.nan
        return out

    def kept(self, length: int) -> Place:
        made = self.place(4 * length)
        self.scratch.append((made.offset, made.offset + 4 * length))
        return made


def values(n: int, seed: int) -> torch.Tensor:
    """float32 over many magnitudes, with zeros of both signs, NaN, Inf, subnormal and huge values here and there, and some groups below what
    bfloat16 holds."""
    g = torch.Generator().manual_seed(seed)
    v = (
        torch.randn(n, generator=g)
        * torch.exp2(torch.randint(-12, 4, (n // 32 + 1,), generator=g)).repeat_interleave(32)[:n]
    )
    odd = torch.tensor(
        [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-42, -3.4e38, 3e38, 65519.0, 1.1754942e-38]
    )
    where = torch.rand(n, generator=g) < 0.001
    picked = odd[torch.randint(0, len(odd), (n,), generator=g)]
    v = torch.where(where, picked, v)
    quiet = (torch.rand(n // 512 + 1, generator=g) < 0.2).repeat_interleave(512)[:n]
    v = torch.where(quiet, 0.0, v)
    lowest = (torch.rand(n // 256 + 1, generator=g) < 0.12).repeat_interleave(256)[:n]
    return torch.where(lowest, -3.395e38 - 7e35 * torch.rand(n, generator=g), v)


def build(case: Case, device: str) -> tuple[Signature, list[FoldArgs], OpContext, torch.Tensor, torch.Tensor, Arena]:
    """The same launch each time it is called, in memory of its own."""
    seed = zlib.crc32(case.name.encode())
    opened = make(case.opened, case.dtype) if case.opened else None
    out = make(case.out, case.dtype) if case.out else None
    if case.first:
        opened, out = (c.first if c else None for c in (opened, out))
    codecs = {k: c for k, c in (("in", opened), ("out", out)) if c}
    names = tuple(out.flags) if out else ()
    rng = torch.tensor([0x1234_5678_9ABC, (7 << 32) + 3], device=device)
    version = torch.tensor([5], dtype=torch.int32, device=device)
    context = OpContext(
        case.dtype,
        case.factor,
        codecs,
        rng,
        version,
        torch.zeros(1 + len(names), dtype=torch.int32, device=device),
        names,
    )
    signature = Signature(
        case.dense,
        "in" if opened else None,
        case.update,
        case.basis,
        "out" if out else None,
        bool(out) and case.wire,
        case.sinks,
    )
    arena = Arena(torch.full((sum(case.sizes) * 64 + (1 << 18),), 0xAA, dtype=torch.uint8, device=device))
    folds, used = [], 3 if case.odd else 0
    for i, length in enumerate(case.sizes):
        seed += 1
        opens = 0 if opened is None else case.opens if case.opens >= 0 else 1 + i % 3
        wires, wire_states = [], []
        for j in range(opens):
            assert opened is not None
            places, wire = received(arena, opened, length, seed * 10 + j, (5 if (i + j) % 5 else 4))
            wires.append(wire)
            wire_states.append(places)
        state = (
            {s.name: keep(arena, out, s.dtype, length, seed * 100 + k) for k, s in enumerate(out.states)} if out else {}
        )
        folds.append(
            FoldArgs(
                length,
                i * FRAME,
                tuple(
                    used if r == "input" else arena.holding(values(padded(length, b), seed + 7)) for r, b in case.dense
                ),
                tuple(wires),
                tuple(arena.wire(out, length) for _ in range(1 + i % 2)) if out and case.wire else (),
                tuple(used if r == "output" else arena.kept(padded(length, b)) for r, b, _ in case.sinks),
                (seed * 0x9E3779B97F4A7C15) % (1 << 64),
                state,
                tuple(wire_states),
            )
        )
        used += length if case.odd else (length + 63) // 64 * 64
    x = values(used, seed).to(DTYPES[case.dtype]).to(device)
    return signature, folds, context, x, torch.full_like(x, 9.0), arena


def padded(length: int, basis: int) -> int:
    return length + -length % basis if basis else length


def keep(arena: Arena, codec: Codec, dtype: str, length: int, seed: int) -> StatePlaces:
    whole = -(-live_elements(codec, length) // codec.group) * codec.group
    now = values(whole, seed).nan_to_num(0.0, 1.0, -1.0).clamp(-8, 8).to(DTYPES[dtype])
    return StatePlaces(arena.holding(now), arena.holding(torch.zeros_like(now)))


def received(arena: Arena, codec: Codec, length: int, seed: int, version: int) -> tuple[dict[str, StatePlaces], Place]:
    """A wire that some rank made, or for codecs without version now and then any bytes at all."""
    places = {
        s.name: keep(arena, codec, s.dtype, length, seed + k) for k, s in enumerate(codec.states) if s.scope == "both"
    }
    v = values(length, seed)
    if codec.basis:
        v = rotate(v, codec.basis)
    states = {
        s.name: torch.zeros(-(-v.numel() // codec.group) * codec.group, dtype=DTYPES[s.dtype]) for s in codec.states
    }
    rng = torch.tensor([1, 2])
    wire = compress(codec, v, states=states, rng=rng, version=torch.tensor([version], dtype=torch.int32)).wire
    if seed % 4 == 3 and not codec.versioned:
        wire = torch.randint(0, 256, wire.shape, generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    return places, arena.holding(wire)


def run(case: Case, backend: Backend, device: str) -> dict[str, torch.Tensor]:
    signature, folds, context, x, y, arena = build(case, device)
    backend.prepare(signature, folds, context).run(x, y)
    return {"y": y.cpu().view(torch.uint8), "memory": arena.settled(), "flags": context.flags.cpu()}


def compare(case: Case, backend: Backend, device: str) -> str:
    """Empty where the two back ends agree, else where they do not."""
    want, got = run(case, EagerBackend(), "cpu"), run(case, backend, device)
    found = []
    for name, value in want.items():
        if not torch.equal(value, got[name]):
            at = (value != got[name]).nonzero().flatten()
            found.append(
                f"{name}: {at.numel()} of {value.numel()} differ, first at {at[:4].tolist()}: {value[at[:4]].tolist()} != {got[name][at[:4]].tolist()}"
            )
    return "; ".join(found)


def kernels_are_made_once(device: str) -> str:
    """A second launch like the first compiles nothing, and a generated module's kernels are used where they are given."""
    from coccl_dsl.codegen import triton_backend as tb
    from coccl_dsl.codegen.triton_source import kernel_key

    case = Case("f32", (IN,), out="int8(group=64)", sizes=(4096,))
    signature, folds, context, *_ = build(case, device)
    first = tb.TritonBackend()
    first.prepare(signature, folds, context)
    made = tb.compilations
    tb.TritonBackend().prepare(signature, folds, context)
    if tb.compilations != made:
        return "a kernel was compiled twice"
    key = kernel_key(signature, context.dtype, context.codecs, False)
    given = tb.TritonBackend({key: first.kernels[key]})
    source, tb.kernel_source = tb.kernel_source, None
    try:
        given.prepare(signature, folds, context)
    finally:
        tb.kernel_source = source
    return ""


def main(device: str, shard: int, shards: int, words: list[str], made: Callable[[], Iterator[Case]] = cases) -> None:
    """Run `made`'s cases of this shard. The first shard of the cases of this file also looks at how often kernels are made."""
    from coccl_dsl.codegen.triton_backend import TritonBackend

    backend = TritonBackend()

    def report(name: str, check: Callable[[], str]) -> None:
        begin = time.perf_counter()
        try:
            problem = check()
        except Exception:
            problem = traceback.format_exc()
        seconds = round(time.perf_counter() - begin, 2)
        print(json.dumps({"case": name, "problem": problem, "seconds": seconds}), flush=True)

    if shard == 0 and made is cases:
        report(MADE_ONCE, partial(kernels_are_made_once, device))
    for i, case in enumerate(made()):
        if i % shards == shard and all(word in case.name for word in words):
            report(case.name, partial(compare, case, backend, device))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
