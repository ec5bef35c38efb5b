"""Every compressor against an independent reference: fields and reconstruction equal bit for bit, on ordinary data and at the edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coccl_dsl.codegen.eager import compress, open_wire, rotate
from coccl_dsl.codegen.packing import read_frames
from coccl_dsl.wire.codec import FRAME, Codec
from coccl_dsl.wire.layout import frame_runs
from tests.compressors.data import KINDS, sample
from tests.compressors.library import EVERY
from tests.compressors.reference import OVER_FRAME, REFERENCES, Fields, exact_transform, transformed
from tests.lang.compressor_texts import codec


def expected(text: str, c: Codec, x: np.ndarray) -> tuple[Fields, np.ndarray]:
    """The reference's fields and values of one frame, its short last group in a batch of its own."""
    reference = REFERENCES[text]
    extra = {"frame": (float(x.min()), float(x.max()))} if text in OVER_FRAME else {}
    whole = len(x) // c.group * c.group
    parts = [reference(x[:whole].reshape(-1, c.group), c.group, **extra)] if whole else []
    if whole < len(x):
        parts.append(reference(x[whole:][None], c.group, **extra))
    per = {f.name: f.per for f in c.fields}
    fields: Fields = {}
    for name in parts[0][0]:
        values = [p[0][name] for p in parts]
        if per[name] == "array":
            length = next(f.length for f in c.fields if f.name == name)
            values = [np.pad(v, ((0, 0), (0, length - v.shape[1]))) for v in values]
        fields[name] = values[0] if per[name] == "frame" else np.concatenate(values)
    return fields, np.concatenate([p[1].reshape(-1) for p in parts])


def same(what: str, got: np.ndarray, want: np.ndarray) -> None:
    got, want = got.reshape(-1).astype(np.float32), want.reshape(-1).astype(np.float32)
    wrong = ~((got == want) | (np.isnan(got) & np.isnan(want)))
    assert not wrong.any(), (
        f"{what}: {wrong.sum()} of {wrong.size} differ, first at {np.flatnonzero(wrong)[:3]}: {got[wrong][:3]} != {want[wrong][:3]}"
    )


@pytest.mark.parametrize("text", REFERENCES)
def test_equals_the_reference(text: str) -> None:
    dtypes = next(q.dtypes for q in EVERY if q.text == text or q.text == text.split("(")[0])
    for dtype in dtypes:
        c = codec(text, dtype)
        for kind in KINDS:
            for count in (1, 3, c.group - 1, c.group, 5 * c.group + c.group // 2 + 1, FRAME + 700):
                if count < 1 or (count > FRAME and (kind not in ("random", "outlier") or dtype != "bf16")):
                    continue
                x = sample(kind, count, dtype, seed=count)
                if c.basis:
                    x = rotate(x / 32 if kind == "huge" else x, c.basis)
                wire = compress(c, x).wire
                opened = open_wire(c, wire, count).values.numpy()
                at = 0
                for begin in range(0, x.numel(), FRAME):
                    piece = x[begin : begin + FRAME].numpy()
                    size = frame_runs(c, len(piece))[1]
                    got, _ = read_frames(c, wire[at : at + size][None], len(piece))
                    at += size
                    fields, values = expected(text, c, piece)
                    where = f"{text} {dtype} {kind} {count}"
                    same(f"{where} values", opened[begin : begin + FRAME], values)
                    assert set(fields) == set(got), "the reference has every field"
                    for name in fields:
                        same(f"{where} {name}", got[name].numpy(), fields[name])


def test_every_compressor_has_a_reference() -> None:
    # These wrap others or start from a state: test_state.py.
    without = {"raw", "error_feedback", "weight_delta4", "weight_delta8"}
    assert {t.split("(")[0] for t in REFERENCES} == {q.name for q in EVERY} - without


@pytest.mark.parametrize("size", [2, 16, 32, 64, 128])
def test_the_transform(size: int) -> None:
    x = sample("random", 1024).numpy()
    turned = transformed(x.reshape(-1, 1024), size).reshape(-1)
    np.testing.assert_allclose(turned, exact_transform(x, size), atol=2e-6)
    if size == 32:
        assert torch.equal(rotate(torch.from_numpy(x), 32), torch.from_numpy(turned))


@pytest.mark.parametrize("text", ["weight_delta4", "weight_delta8"])
def test_differences_are_against_the_shared_reconstruction(text: str) -> None:
    c, q = codec(text), 7 if text == "weight_delta4" else 127
    base = sample("random", 4096, seed=1).bfloat16()
    x = (base.float() + 0.01 * sample("random", 4096, seed=2)).bfloat16().float()
    made = compress(c, x, states={"base": base}, version=torch.ones(1, dtype=torch.int32))
    from tests.compressors.reference import symmetric

    fields, values = symmetric(q)((x - base.float()).numpy().reshape(2, 2048), 2048)
    same("values", made.opened.numpy(), base.float().numpy() + values.reshape(-1))
    assert torch.equal(made.states["base"], made.opened.bfloat16())
    got, _ = read_frames(c, made.wire[None], 4096)
    same("code", got["code"].numpy(), fields["code"])
    same("scale", got["scale"].numpy(), fields["scale"])
