"""--emit: the forms of a collective between text and machine code, and the bytes of a wire."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..diagnostics import Span
from ..pipeline import Collective
from ..plan import show
from ..plan.ops import Launch, Plan
from ..wire.codec import FRAME, Codec
from ..wire.layout import bits_per_value, frame_runs, wire_bytes
from .show import Facts, print_table

PTX_TARGET = ("cuda", 90, 32)
# One group of these, or as many as the group has: values of both signs, a zero, a large one.
EXAMPLE = (0.5, -1.25, 3.0, 0.0, -0.125, 7.5, 2.25, -4.0)


def ast_text(node: Any, depth: int = 0) -> str:
    """The syntax tree, one node or value a line, without spans."""
    pad = "  " * depth
    if isinstance(node, tuple):
        return "\n".join(ast_text(v, depth) for v in node)
    if not dataclasses.is_dataclass(node):
        return f"{pad}{node!r}"
    short, nested = [], []
    for f in dataclasses.fields(node):
        value = getattr(node, f.name)
        if not isinstance(value, Span) and not f.name.endswith("span") and value not in (None, ()):
            (nested if _deep(value) else short).append((f.name, value))
    lines = [pad + " ".join([type(node).__name__, *(f"{name}={value!r}" for name, value in short)])]
    for name, value in nested:
        lines += [f"{pad}  {name}:", ast_text(value, depth + 2)]
    return "\n".join(lines)


def _deep(value: Any) -> bool:
    """Whether a node is in it."""
    return any(map(_deep, value)) if isinstance(value, tuple) else dataclasses.is_dataclass(value)


def print_form(form: str, collective: Collective, f: Facts) -> None:
    """plan, json, triton or ptx. Raises NotImplementedError, RuntimeError where a kernel cannot be made."""
    if form == "plan":
        print(show.text(f.plan), end="")
    elif form == "json":
        print(json.dumps(show.to_json(f.plan), indent=1))
    else:
        from ..codegen.module import plans_of

        plans = plans_of(collective, f.world, f.plan.dtype)
        print(triton_text(plans) if form == "triton" else ptx_text(plans), end="")


def triton_text(plans: list[Plan]) -> str:
    from ..codegen.module import kernels_of
    from ..codegen.triton_source import HEADER

    return "\n\n".join([HEADER, *(s.text for s in kernels_of(plans).sources.values())])


# ---------------------------------------------------------------- PTX


def _variants(plans: list[Plan]) -> dict[tuple[str, bool, bool, bool], int]:
    """(kernel, whether its Folds open one wire each, whether they store to one place each, whether it copies chunks too) -> warps."""
    from ..codegen.triton_source import kernel_source

    found: dict[tuple[str, bool, bool, bool], int] = {}
    for plan in plans:
        for step in plan.steps:
            if isinstance(step, Launch):
                source = kernel_source(step.signature, plan.dtype, plan.codecs, plan.op != "sum")
                wires = all(len(f.opened) <= 1 for f in step.folds)
                places = all((f.wire is not None and f.local) + len(f.remote) == 1 for f in step.folds)
                found[source.name, wires, places, bool(step.copies)] = source.tiling.warps
    return found


def ptx_text(plans: list[Plan]) -> str:
    """Every kernel's PTX for sm_90, made here, without a GPU; tensors 16-byte aligned. Raises RuntimeError where Triton cannot."""
    if find_spec("triton") is None:
        raise RuntimeError("--emit ptx needs triton, which is not installed here")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from ..codegen.triton_source import VARIANTS

    dtype = {"f32": "fp32", "bf16": "bf16", "f16": "fp16"}[plans[0].dtype]
    types = {
        "x": f"*{dtype}",
        "y": f"*{dtype}",
        "table": "*i64",
        "folds": "i32",
        "row_size": "i32",
        "places_at": "i32",
        "factor": "fp32",
    }
    types |= {"rng": "*i64", "version": "*i32", "flags": "*i32"}
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "coccl_kernels.py"
        path.write_text(triton_text(plans), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("coccl_kernels", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["coccl_kernels"] = module
        spec.loader.exec_module(module)
        for (name, wires, places, copies), warps in _variants(plans).items():
            kernel = getattr(module, name)
            constants = dict(zip(VARIANTS, (True, wires, places, False, copies), strict=True))
            source = ASTSource(kernel, {a: types.get(a, "constexpr") for a in kernel.arg_names}, constants)
            try:
                made = triton.compile(
                    source, target=GPUTarget(*PTX_TARGET), options={"num_warps": warps, "enable_fp_fusion": False}
                )
            except Exception as e:
                why = str(e).splitlines()[0] if str(e) else type(e).__name__
                raise RuntimeError(f"triton {triton.__version__} cannot compile {name} for sm_90 here: {why}") from e
            variant = ", ".join(f"{constant}={value}" for constant, value in constants.items())
            parts.append(f"// {name}: {variant}\n{made.asm['ptx']}")
    return "\n".join(parts)


# ---------------------------------------------------------------- wires


def print_wire(name: str, codec: Codec) -> None:
    """Where each byte of a wire lies, and a worked example."""
    head = f"{name} = {codec.name}" if name else codec.name
    print(f"{head}: {bits_per_value(codec):g} bits a value, {codec.dtype} tensors")
    runs, size = frame_runs(codec, FRAME)
    print(
        f"  a frame of {FRAME} elements is {size:,} bytes; the last frame of a chunk is shorter, laid out in the same way"
    )
    types = {f.name: f for f in codec.fields}
    rows = []
    for run in runs:
        f = types.get(run.field)
        per = (
            "one a frame"
            if f is None or f.per == "frame"
            else f"{f.length if f.per == 'array' else 1} a group of {codec.group}"
        )
        rows.append([f"{run.offset:,}", f"{run.bytes:,}", run.field, f.type if f else "u32", f"{run.values:,}", per])
    print_table(["offset", "bytes", "field", "type", "values", ""], rows, right=(0, 1, 4))
    if any(f.bits < 8 for f in codec.fields):
        print("  values of less than a byte: low bits first; signed ones in two's complement")
    if find_spec("torch") is None:
        print("  (an example needs torch, which is not installed here)")
    else:
        _example(codec)
    if codec.first is not None:
        print("  the first call after bind or reset sends:")
        print_wire("", codec.first)


def _example(codec: Codec) -> None:
    import torch

    from ..codegen.casts import TORCH_DTYPES, to_dtype
    from ..codegen.eager import compress, open_wire, rotate

    x = torch.tensor(EXAMPLE[: codec.group]).to(TORCH_DTYPES[codec.dtype])
    v = rotate(x.float(), codec.basis) if codec.basis else x.float()
    whole = -(-v.numel() // codec.group) * codec.group
    states = {s.name: torch.zeros(whole, dtype=TORCH_DTYPES[s.dtype]) for s in codec.states}
    version = torch.zeros(1, dtype=torch.int32)
    made = compress(codec, v, states=states, rng=torch.zeros(2, dtype=torch.int64), version=version)
    opened = open_wire(codec, made.wire, x.numel(), states=states, version=version).values
    if codec.basis:
        opened = rotate(opened, codec.basis)[: x.numel()]
    print(
        f"  example: {x.numel()} elements take {wire_bytes(codec, x.numel())} bytes"
        + (", from states of 0" if states else "")
    )
    print("    values        " + " ".join(f"{e:g}" for e in x.tolist()))
    for run in frame_runs(codec, v.numel())[0]:
        data = made.wire[run.offset : run.offset + run.bytes].tolist()
        dots = f" ... ({run.bytes} bytes)" if run.bytes > 16 else ""
        print(f"    {run.field:<13} " + " ".join(f"{b:02x}" for b in data[:16]) + dots)
    print("    decompressed  " + " ".join(f"{e:g}" for e in to_dtype(opened, codec.dtype).tolist()))
