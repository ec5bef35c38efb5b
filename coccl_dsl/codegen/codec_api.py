"""Compressors on plain tensors: `codec("int4(group=64)")` compresses, decompresses and measures without any collective."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ..diagnostics import CompileError
from ..lang.parse import parse_binding
from ..plan.ops import Signature
from ..shown import Printed
from ..wire import layout
from ..wire.codec import DTYPES, Codec
from ..wire.compile import compile_codec
from ..wire.scope import Scope, bind
from .casts import TORCH_DTYPES
from .eager import EagerBackend
from .launch import Backend, FoldArgs, OpContext, Place

_NAMES = {v: k for k, v in TORCH_DTYPES.items()}


@dataclass(frozen=True)
class Wire:
    """A compressed tensor. data uint8[nbytes], on the tensor's device; count, shape, dtype: the tensor's; codec: who can open it."""

    data: Tensor
    count: int
    shape: torch.Size
    dtype: torch.dtype
    codec: str

    @property
    def nbytes(self) -> int:
        return self.data.numel()


class BoundCodec(Printed):
    """A compressor with its parameters, for tensors of f32, bf16 and f16 (or of the one dtype it was made for). Made by `codec`."""

    def __init__(self, text: str, dtype: torch.dtype | None, seed: int):
        self._bound = bind(parse_binding(text), Scope())
        self._allowed = DTYPES if dtype is None else (_dtype_name(dtype),)
        self._compiled: dict[str, Codec] = {}
        self.seed, self.calls = seed, 0
        problem: CompileError | None = None
        for name in self._allowed:
            try:
                self._compiled[name] = compile_codec(self._bound, name)
            except CompileError as e:
                problem = e
        if not self._compiled:
            assert problem is not None
            raise problem
        some = next(iter(self._compiled.values()))
        if some.stateful:
            states = ", ".join(f"`{s.name}`" for s in some.states)
            raise ValueError(
                f"{self.name} keeps state ({states}) from call to call: bind it in a collective, which owns its state"
            )

    @property
    def name(self) -> str:
        """Canonical text, all parameters written out."""
        return self._bound.name

    def __repr__(self) -> str:
        return f"codec({self.name!r})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.compiled()._repr_mimebundle_()

    @property
    def bits_per_value(self) -> float:
        """Bits on the wire an element, over whole frames. Raises ValueError where it depends on a dtype that was not given."""
        bits = {layout.bits_per_value(c) for c in self._compiled.values()}
        if len(bits) > 1:
            raise ValueError(f"bits of {self.name} depend on the tensor's dtype: codec(..., dtype=torch.bfloat16)")
        return bits.pop()

    def compiled(self, dtype: str = "bf16") -> Codec:
        """The compressor as it is for tensors of `dtype`, or of the first dtype that it takes: fields, claims, layout."""
        return self._compiled.get(dtype) or next(iter(self._compiled.values()))

    def _for(self, dtype: torch.dtype) -> Codec:
        name = _dtype_name(dtype)
        if name not in self._allowed:
            raise TypeError(f"{self!r} was made for {self._allowed[0]} tensors, not {name}")
        if name not in self._compiled:
            raise TypeError(f"{self.name} takes {', '.join(self._compiled)} tensors, not {name}")
        return self._compiled[name]

    @torch.no_grad()
    def compress(self, x: Tensor) -> Wire:
        """The wire of a tensor of any shape, contiguous or not, on any device; the tensor is one chunk in row-major order.

        A stochastic compressor advances its call number. Raises TypeError where x's dtype is not float32, bfloat16 or float16, or not one that
        the compressor takes.
        """
        if not isinstance(x, Tensor):
            raise TypeError(f"x is {type(x).__name__}, a tensor is wanted")
        c = self._for(x.dtype)
        data = torch.zeros(layout.wire_bytes(c, x.numel()), dtype=torch.uint8, device=x.device)
        if x.numel():
            flat = x.contiguous().reshape(-1)
            fold = FoldArgs(x.numel(), 0, (0,), (), (Place(data, 0),), ())
            self._run(c, Signature((("input", 0),), None, False, c.basis, c.name, True, ()), fold, flat, flat)
        self.calls += c.stochastic
        return Wire(data, x.numel(), x.shape, x.dtype, self.name)

    @torch.no_grad()
    def decompress(self, w: Wire) -> Tensor:
        """The tensor that `w` stands for, of w's shape and dtype. Raises ValueError where another compressor made it."""
        if not isinstance(w, Wire):
            raise TypeError(f"w is {type(w).__name__}, what `compress` gave is wanted")
        if w.codec != self.name:
            raise ValueError(f"the wire is {w.codec}, and {self.name} cannot open it")
        c = self._for(w.dtype)
        if w.data.numel() < layout.wire_bytes(c, w.count):
            raise ValueError(
                f"{w.count} elements of {self.name} take {layout.wire_bytes(c, w.count)} bytes, the wire has {w.data.numel()}"
            )
        y = torch.empty(w.count, dtype=w.dtype, device=w.data.device)
        if w.count:
            data = w.data if w.data.data_ptr() % layout.ALIGN == 0 and w.data.is_contiguous() else w.data.clone()
            fold = FoldArgs(w.count, 0, (), (Place(data, 0),), (), (0,))
            signature = Signature((), c.name, False, c.basis, None, False, (("output", 0, False),))
            self._run(c, signature, fold, y, y)
        return y.reshape(w.shape)

    def _run(self, c: Codec, signature: Signature, fold: FoldArgs, x: Tensor, y: Tensor) -> None:
        """One Fold, by generated kernels on CUDA and by torch elsewhere: equal bits."""
        rng = torch.tensor([self.seed, self.calls], dtype=torch.int64, device=x.device)
        counters = torch.zeros(2 + len(c.flags), dtype=torch.int32, device=x.device)
        context = OpContext(c.dtype, None, {c.name: c}, rng, counters[:1], counters[1:], tuple(c.flags))
        _backend(x.device).prepare(signature, [fold], context).run(x, y)

    def roundtrip(self, x: Tensor) -> Tensor:
        """What a receiver of x would hold: x's shape and dtype."""
        return self.decompress(self.compress(x))


def codec(text: str, dtype: torch.dtype | None = None, *, seed: int = 0) -> BoundCodec:
    """A compressor by its text, such as "int4(group=64)" or "int8(round=stochastic)", looked up in the shipped library and COCCL_PATH.

    dtype  torch.float32, bfloat16 or float16 to fix it; None takes all that the compressor takes
    seed   of stochastic rounding

    Raises CompileError for a mistake in the text, ValueError for a compressor with state or a seed that is none, TypeError for another dtype.
    """
    if not isinstance(text, str):
        raise TypeError(f"text is {type(text).__name__}: the text of a compressor is wanted, such as 'int8'")
    if not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed={seed!r}: a whole number of 64 bits is wanted")
    return BoundCodec(text, dtype, seed)


def _backend(device: torch.device) -> Backend:
    if device.type != "cuda" or find_spec("triton") is None:
        return EagerBackend()
    from .triton_backend import TritonBackend

    return TritonBackend()


def _dtype_name(dtype: torch.dtype) -> str:
    if dtype not in _NAMES:
        raise TypeError(
            f"compressors take float32, bfloat16 or float16 tensors, not {str(dtype).removeprefix('torch.')}"
        )
    return _NAMES[dtype]
