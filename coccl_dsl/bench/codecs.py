"""How fast compressors run on one device, as a share of what a device copy moves: compress, decompress-add, and the middle of a two-shot.

Each is one Fold, as plans run it: compress reads the tensor and writes the wire (and states), decompress-add reads a tensor and a wire and
writes a tensor, the middle reads a chunk and a peer's wire and writes a wire and the chunk. Bytes are those read and written.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..codegen.casts import TORCH_DTYPES
from ..codegen.eager import EagerBackend
from ..codegen.launch import Backend, FoldArgs, OpContext, Place, StatePlaces
from ..lang.parse import parse_binding
from ..plan.ops import Signature
from ..wire.codec import TYPES, Codec
from ..wire.compile import compile_codec
from ..wire.layout import bits_per_value, live_elements, wire_bytes
from ..wire.scope import Scope, bind

FORMS = ("compress", "decompress_add")
MIDDLE = "middle"
# Elements of the comparison with the reference: whole tiles, small ones, a short second frame.
CHECKED = 100_003

# What the library aims at, as shares of the copy rate of compress and of decompress-add, in bfloat16.
BARS = {
    0.9: ("int8",),
    0.8: ("int4", "uint8", "uint4", "fp8_e4m3", "fp8_e5m2", "mxfp8", "mxfp4", "bfp8"),
    0.6: (
        "int8_h32",
        "int4_h32",
        "taco_fp8",
        "spike4",
        "spike3",
        "spike2",
        "signed8",
        "signed6",
        "signed4",
        "nvfp4",
    ),
}
TEXTS = (
    *("raw", "bf16", "fp16", "int8", "int4", "int2", "uint8", "uint4", "minmax_u8", "signed8", "signed6", "signed4"),
    *(
        "fp8_e4m3",
        "fp8_e5m2",
        "mxfp8",
        "mxfp4",
        "nvfp4",
        "int8_h32",
        "int4_h32",
        "weight_delta8",
        "weight_delta4",
        "tah_quant",
    ),
    *(
        "taco_fp8",
        "spike4",
        "spike3",
        "spike2",
        "bfp8",
        "zfp8",
        "topk",
        "sign1",
        "lossless_bf16",
        "error_feedback(int4)",
    ),
)


def bar_of(text: str, dtype: str) -> float | None:
    if dtype != "bf16":
        return None
    return next((bar for bar, names in BARS.items() if text in names), None)


def made(text: str, dtype: str) -> Codec:
    return compile_codec(bind(parse_binding(text), Scope()), dtype)


@dataclass
class Row:
    """One form of one compressor. share: bytes a second over those of a copy; equal: the same bits as the reference on the CPU."""

    compressor: str
    form: str
    dtype: str
    bits: float
    bytes: int
    us: float
    share: float
    bar: float | None
    equal: bool

    def json(self) -> dict[str, Any]:
        return asdict(self)


def signature_of(c: Codec, form: str) -> Signature:
    given = (("input", 0),)
    if form == "compress":
        return Signature(given, None, False, c.basis, "q", True, ())
    if form == "decompress_add":
        return Signature(given, "q", c.versioned, c.basis, None, False, (("output", 0, False),))
    return Signature(given, "q", False, c.basis, "q", True, (("output", 0, True),))


class Launch:
    """One Fold of `count` elements with memory of its own."""

    def __init__(self, c: Codec, form: str, backend: Backend, x: torch.Tensor):
        self.x, self.y, device = x, torch.zeros_like(x), x.device
        n = x.numel()
        self.wire = torch.zeros(wire_bytes(c, n), dtype=torch.uint8, device=device)
        self.sent = torch.zeros_like(self.wire)
        whole = -(-live_elements(c, n) // c.group) * c.group
        names = [s for s in c.states if form == "compress" or s.scope == "both"]
        self.states = {
            s.name: [torch.zeros(whole, dtype=TORCH_DTYPES[s.dtype], device=device) for _ in range(2)] for s in names
        }
        places = {k: StatePlaces(*(Place(t.view(torch.uint8), 0) for t in v)) for k, v in self.states.items()}
        flags = torch.zeros(1 + len(c.flags), dtype=torch.int32, device=device)
        version = torch.zeros(1, dtype=torch.int32, device=device)
        rng = torch.tensor([1, 2], dtype=torch.int64, device=device)
        context = OpContext(c.dtype, None, {"q": c}, rng, version, flags, tuple(c.flags))
        wire, sent = Place(self.wire, 0), Place(self.sent, 0)
        if form == "compress":
            fold = FoldArgs(n, 0, (0,), (), (sent,), (), state=places)
        elif form == "decompress_add":
            fold = FoldArgs(n, 0, (0,), (wire,), (), (0,), wire_states=(places,))
        else:
            fold = FoldArgs(n, 0, (0,), (wire,), (sent,), (0,))
        self._prepared = backend.prepare(signature_of(c, form), [fold], context)

    def run(self) -> None:
        self._prepared.run(self.x, self.y)

    def results(self) -> list[torch.Tensor]:
        return [t.cpu().view(torch.uint8) for t in (self.sent, self.y, *(v[1] for v in self.states.values()))]


def moved_bytes(c: Codec, form: str, count: int) -> int:
    tensor, wire = count * TYPES[c.dtype][0] // 8, wire_bytes(c, count)
    states = [s for s in c.states if form == "compress" or s.scope == "both"]
    kept = sum(2 * count * TYPES[s.dtype][0] // 8 for s in states)
    return kept + {"compress": tensor + wire, "decompress_add": 2 * tensor + wire, MIDDLE: 2 * tensor + 2 * wire}[form]


def values(count: int, dtype: str, device: torch.device, seed: int) -> torch.Tensor:
    g = torch.Generator(device).manual_seed(seed)
    return torch.randn(count, generator=g, device=device).to(TORCH_DTYPES[dtype])


def sent_wire(c: Codec, x: torch.Tensor, backend: Backend) -> torch.Tensor:
    """x on the wire, from states of 0."""
    one = Launch(c, "compress", backend, x)
    one.run()
    return one.sent


def agrees(c: Codec, form: str, backend: Backend, device: torch.device) -> bool:
    """Whether the device's result has the bits of the reference on the CPU."""
    x = values(CHECKED, c.dtype, torch.device("cpu"), 5)
    x[::1000] *= 30
    found = []
    wire = sent_wire(c, x.flip(0), EagerBackend()) if form != "compress" else None
    for at, run_by in ((torch.device("cpu"), EagerBackend()), (device, backend)):
        one = Launch(c, form, run_by, x.to(at))
        if wire is not None:
            one.wire.copy_(wire)
        one.run()
        found.append(one.results())
    return all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def timed(runs: list[Callable[[], None]], repeats: int, device: torch.device) -> float:
    """Median microseconds of a run; the runs take turns."""
    for run in runs[:2] * 2:
        run()
    if device.type != "cuda":
        times = []
        for i in range(repeats):
            begin = time.perf_counter()
            runs[i % len(runs)]()
            times.append(time.perf_counter() - begin)
        return statistics.median(times) * 1e6
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    torch.cuda.synchronize(device)
    for i, (begin, end) in enumerate(events):
        begin.record()
        runs[i % len(runs)]()
        end.record()
    torch.cuda.synchronize(device)
    return statistics.median(a.elapsed_time(b) for a, b in events) * 1e3


def copy_rate(size: int, sets: int, repeats: int, device: torch.device) -> float:
    """Bytes a microsecond, read and written, of a device copy of `size` bytes."""
    tensors = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2 * sets)]
    runs = [lambda a=a, b=b: b.copy_(a) for a, b in zip(tensors[::2], tensors[1::2], strict=True)]
    return 2 * size / timed(runs, repeats, device)  # type: ignore[arg-type]


def forms_of(text: str) -> tuple[str, ...]:
    return (*FORMS, MIDDLE) if text in ("int8", "int4") else FORMS


def measure(
    text: str, dtype: str, size: int, rate: float, backend: Backend, device: torch.device, *, sets: int, repeats: int
) -> list[Row]:
    """Rows of one compressor at tensors of `size` bytes; the middle at half of it, a chunk of two ranks. `rate` is the copy rate."""
    c = made(text, dtype)
    rows = []
    for form in forms_of(text):
        count = size * 8 // TYPES[dtype][0] // (2 if form == MIDDLE else 1)
        number = sets * 2 if form == MIDDLE else sets
        launches = [Launch(c, form, backend, values(count, dtype, device, seed)) for seed in range(number)]
        if form != "compress":
            wire = sent_wire(c, launches[0].x, backend)
            for one in launches:
                one.wire.copy_(wire)
        us = timed([one.run for one in launches], repeats, device)
        del launches
        moved = moved_bytes(c, form, count)
        bar = bar_of(text, dtype) if form != MIDDLE else None
        rows.append(
            Row(
                text,
                form,
                dtype,
                bits_per_value(c),
                moved,
                us,
                moved / us / rate,
                bar,
                agrees(c, form, backend, device),
            )
        )
    return rows


def warm(texts: list[tuple[str, str]], backend: Backend, device: torch.device) -> None:
    """Compile the kernels of (compressor, dtype), so that another process finds them in Triton's cache."""
    for text, dtype in texts:
        c = made(text, dtype)
        for form in forms_of(text):
            Launch(c, form, backend, values(CHECKED, dtype, device, 0))
