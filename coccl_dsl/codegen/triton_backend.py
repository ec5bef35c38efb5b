"""The Triton back end: builds segment tables, compiles kernels once a process, and launches them.

A launch costs Python as little as it can: the table is in device memory since `prepare`, and `run` calls the compiled kernel's launcher with
two pointers that change. With TRITON_INTERPRET=1 the same kernels run on CPU tensors.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from triton import knobs

from ..plan.ops import Signature
from .launch import FoldArgs, OpContext, Place, Prepared, StatePlaces, UserKernel
from .one_launch_source import Control, ExchangeArgs, LaunchArgs
from .tiling import Tiling, reads_words, tiling
from .triton_launch import UserLaunch
from .triton_source import HEADER, KernelSource, Row, kernel_key, kernel_source, row_of

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

# Kernels compiled (under the interpreter: made) by this process. Nothing may be compiled after bind; tests assert it by this.
compilations = 0

_lock = threading.Lock()
_functions: dict[str, Any] = {}
_compiled: dict[tuple[Any, ...], Any] = {}


class TritonBackend:
    """`launch.Backend` for CUDA tensors, or for CPU tensors under Triton's interpreter.

    kernels  jit functions of a generated module by `kernel_key`; what is not there is generated
    """

    def __init__(self, kernels: Mapping[str, Any] | None = None):
        self.kernels = dict(kernels or {})
        # Of whole calls: their text does not depend on the count, and takes milliseconds to make.
        self._calls: dict[Any, Any] = {}

    def prepare(
        self, signature: Signature, folds: list[FoldArgs], context: OpContext, programs: int | None = None
    ) -> _TritonFolds:
        """Build the launch's table and compile what it needs.

        Raises KeyError where the signature names a codec that the context lacks, NotImplementedError where a codec uses an operation that
        cannot be generated, ValueError where a codec's flag is not in `context.flag_names`.
        """
        key = kernel_key(signature, context.dtype, context.codecs, context.factor is not None)
        function = self.kernels.get(key)
        if function is None:
            function = self.kernels[key] = function_of(
                kernel_source(signature, context.dtype, context.codecs, context.factor is not None)
            )
        return _TritonFolds(function, signature, folds, context, programs)

    def prepare_call(
        self,
        steps: Sequence[LaunchArgs | ExchangeArgs],
        context: OpContext,
        control: Control,
        shape: Tiling,
    ) -> Prepared:
        """A kernel that runs a whole call. shape: its tiles, the same elements on all ranks."""
        from .triton_one_launch import OneLaunch, function_for

        parts = tuple(s.part for s in steps)
        names = tuple((key, codec.name) for key, codec in context.codecs.items())
        key = parts, names, context.dtype, context.factor is not None, shape
        if key not in self._calls:
            self._calls[key] = function_for(parts, context, shape)
        return OneLaunch(self._calls[key], steps, context, control, shape)


class _TritonFolds:
    """One launch, ready to run."""

    def __init__(
        self, function: Any, signature: Signature, folds: list[FoldArgs], context: OpContext, programs: int | None
    ):
        self.device = context.rng.device
        shape = tiling(signature, context.codecs)
        rows = Rows(row_of(signature, context.codecs), signature, folds, context)
        self.table = torch.tensor(rows.values, dtype=torch.int64).to(self.device)
        needed = max(shape.programs(f.length) for f in folds)
        self.folds = len(folds)
        self.programs = min(needed, max(1, programs // self.folds)) if programs else needed
        self.context = context
        self.aligned = rows.aligned
        self.user_kernel: UserKernel | None = None
        # The kernel's constants but ALIGNED, in its order.
        one = {
            "ONE_WIRE": all(len(f.wires) <= 1 for f in folds),
            "ONE_PLACE": all(len(f.places) == 1 for f in folds if f.copy_to is None),
            "LOOP": self.programs < needed,
            "COPIES": any(f.copy_to is not None for f in folds),
        }
        fixed = (self.folds, rows.size, rows.places_at, float(context.factor if context.factor is not None else 1.0))
        if knobs.runtime.interpret:
            self.run = self._interpreted(function, fixed, one, shape)
        else:
            self.run = self._launcher(function, fixed, one, signature)

    def _interpreted(
        self, function: Any, fixed: tuple[Any, ...], one: dict[str, bool], shape: Tiling
    ) -> Callable[..., None]:
        c, grid = self.context, (self.programs * self.folds,)
        compiled_once(function, None, lambda: function)

        def run(x: torch.Tensor, y: torch.Tensor) -> None:
            aligned = self.aligned and (x.data_ptr() | y.data_ptr()) % 16 == 0
            function[grid](x, y, self.table, *fixed, c.rng, c.version, c.flags, ALIGNED=aligned, **one)

        return run

    def _launcher(
        self, function: Any, fixed: tuple[Any, ...], one: dict[str, bool], signature: Signature
    ) -> Callable[..., None]:
        """Aligned and unaligned kernels are both compiled now, because a later call's tensors or count may differ in this from the first one's."""
        c, index = self.context, self.device.index or 0
        dtype = DTYPES[c.dtype]
        roles = {role for role, _ in signature.dense} | {role for role, _, _ in signature.sinks}
        touches_user = bool(roles & {"input", "output"})
        # Whether triton_pairs.load gives words.
        has_words = c.dtype != "f32" and torch.cuda.get_device_capability(index) >= (9, 0)
        has_words = has_words and reads_words(signature, c.codecs, c.factor is not None)

        def compiled(aligned: bool) -> Any:
            def make() -> Any:
                shape = tiling(signature, c.codecs, aligned and has_words)
                options = {"grid": (1,), "num_warps": shape.warps, "enable_fp_fusion": False}
                options |= {"maxnreg": shape.registers} if shape.registers else {}
                tensors = (torch.int64, torch.int32, torch.int32)
                kernel = function.warmup(dtype, dtype, torch.int64, *fixed, *tensors, ALIGNED=aligned, **one, **options)
                kernel = kernel.result() if hasattr(kernel, "result") else kernel
                assert kernel.run is not None, "loads the kernel"
                return kernel

            with torch.cuda.device(index):
                return compiled_once(function, (index, dtype, aligned, *one.values()), make)

        kernels = {a: compiled(a) for a in ((True, False) if touches_user else (True,))}
        tail = (self.table.data_ptr(), *fixed, c.rng.data_ptr(), c.version.data_ptr(), c.flags.data_ptr())
        grid, constants = self.programs * self.folds, tuple(one.values())
        launch = UserLaunch(index, grid, kernels, touches_user, self.aligned, tail, constants)
        self.user_kernel = launch.user
        return launch.run


class Rows:
    """The segment table's values (see triton_source). `aligned`: offsets into x and y keep 16 bytes."""

    def __init__(self, row: Row, signature: Signature, folds: list[FoldArgs], context: OpContext):
        self.row, self.context = row, context
        self.places_at = row.wires_at + row.entry * max((len(f.wires) for f in folds), default=0)
        self.size = self.places_at + max(1, *(len(f.places) for f in folds), 1)
        self.flags = [1 + context.flag_names.index(name) for name in row.flags]
        itemsize = DTYPES[context.dtype].itemsize
        offsets = [p for f in folds for p in (*f.dense, *f.sinks, f.copy_to) if isinstance(p, int)]
        self.aligned = all(p * itemsize % 16 == 0 for p in offsets)
        self.values = [self._values(f) for f in folds]

    def _values(self, f: FoldArgs) -> list[int]:
        if f.copy_to is not None:
            values = [f.length, f.start, 0, 0, -1, _where(f.dense[0])]
            values += [0] * (self.places_at - len(values)) + [f.copy_to]
            return values + [0] * (self.size - len(values))
        values = [f.length, f.start, _signed(f.key), len(f.wires), len(f.places)]
        values += [_where(p) for p in (*f.dense, *f.sinks)]
        values += _states(self.row.states, f.state)
        values += self.flags
        for i, wire in enumerate(f.wires):
            kept = f.wire_states[i] if f.wire_states else {}
            values += [wire.address, *_states(self.row.in_states, kept)]
        values += [0] * (self.places_at - len(values))
        values += [p.address for p in f.places]
        return values + [0] * (self.size - len(values))


def _signed(key: int) -> int:
    return (key + (1 << 63)) % (1 << 64) - (1 << 63)


def _where(place: int | Place) -> int:
    return place if isinstance(place, int) else place.address


def _states(names: tuple[str, ...], places: Mapping[str, StatePlaces]) -> list[int]:
    """Addresses of current and next values. A codec that is opened without its state being read or updated has none."""
    found = [places.get(name) for name in names]
    return [a for p in found for a in ((p.current.address, p.next.address) if p else (0, 0))]


# ---------------------------------------------------------------- kernels of this process


def cache_folder() -> Path:
    """Where generated kernels are written, so that tracebacks and Triton find their text: COCCL_CACHE or ~/.cache/coccl_dsl."""
    return Path(os.environ.get("COCCL_CACHE") or Path.home() / ".cache" / "coccl_dsl") / "kernels"


def function_of(source: KernelSource) -> Any:
    """The jit function of a source: written to a file of its own and imported, once a process."""
    with _lock:
        if source.name not in _functions:
            _functions[source.name] = getattr(_module(source), source.name)
        return _functions[source.name]


def _module(source: KernelSource) -> Any:
    text = f"{HEADER}\n\n{source.text}"
    path = cache_folder() / f"{source.name}_{hashlib.sha256(text.encode()).hexdigest()[:8]}.py"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8") as f:
            f.write(text)
        # Other processes may be writing the same file: a rename is seen whole or not at all.
        os.replace(f.name, path)
    name = f"coccl_dsl_kernels.{source.name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def compiled_once(function: Any, variant: Any, make: Callable[[], Any]) -> Any:
    """`make()` once for each variant of a function."""
    global compilations
    with _lock:
        key = (function, variant)
        if key not in _compiled:
            _compiled[key] = make()
            compilations += 1
        return _compiled[key]
