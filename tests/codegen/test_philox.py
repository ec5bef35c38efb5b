"""Philox draws: the published vectors, an independent implementation, and what a draw may depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coccl_dsl.codegen.philox import philox4x32, uniform

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
ONES = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)


def reference(words: list[np.ndarray], key: tuple[int, int]) -> list[np.ndarray]:
    mask = np.uint64(ONES)
    c = [w.astype(np.uint64) & mask for w in words]
    k = [np.uint64(key[0]), np.uint64(key[1])]
    for _ in range(10):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(q >> np.uint64(32)) ^ c[1] ^ k[0], q & mask, (p >> np.uint64(32)) ^ c[3] ^ k[1], p & mask]
        k = [(k[0] + np.uint64(0x9E3779B9)) & mask, (k[1] + np.uint64(0xBB67AE85)) & mask]
    return c


def reference_uniform(seed: int, call: int, key: int, stream: int, start: int, count: int) -> np.ndarray:
    e = np.arange(start, start + count, dtype=np.uint64)
    quad = e >> np.uint64(2)
    words = [quad, *(np.full_like(quad, v & ONES) for v in (call, key, key >> 32))]
    out = np.stack(reference(words, (seed & ONES, (seed >> 32 & ONES) ^ (stream * 0x9E3779B9 & ONES))))
    word = out[(e & np.uint64(3)).astype(np.int64), np.arange(count)]
    return (word >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (PI, (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_known_answers_of_random123(counter, key, words):
    assert tuple(int(w) for w in philox4x32(counter, key)) == words


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("start", [0, 1, 3, 32768, (1 << 34) - 6])
@pytest.mark.parametrize(("seed", "call", "stream"), [(0, 0, 0), (-3, 7, 1), (0x123456789ABCDEF0, (1 << 40) + 2, 5)])
def test_draws_equal_an_independent_implementation(device, start, seed, call, stream):
    key = 0xFEDCBA9876543210
    got = uniform(seed, call, key, stream, start, 1001, device)
    assert got.dtype == torch.float32
    np.testing.assert_array_equal(got.cpu().numpy(), reference_uniform(seed, call, key, stream, start, 1001))


@pytest.mark.parametrize("device", DEVICES)
def test_seed_and_call_may_stay_on_the_device(device):
    rng = torch.tensor([-(1 << 62) + 5, 3], dtype=torch.int64, device=device)
    assert torch.equal(uniform(rng[0], rng[1], 9, 2, 5, 77, device), uniform(-(1 << 62) + 5, 3, 9, 2, 5, 77, device))


def test_draws_do_not_depend_on_how_a_chunk_is_cut():
    whole = uniform(1, 2, 3, 0, 0, 1000, "cpu")
    parts = [uniform(1, 2, 3, 0, a, b - a, "cpu") for a, b in [(0, 1), (1, 6), (6, 511), (511, 1000)]]
    assert torch.equal(whole, torch.cat(parts))


def test_seed_call_key_and_stream_all_change_the_draws():
    drawn = [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 1 << 32, 0), (0, 0, 0, 1), (1 << 32, 0, 0, 0)]
    rows = torch.stack([uniform(*d, 0, 64, "cpu") for d in [(0, 0, 0, 0), *drawn]])
    assert len({tuple(r.tolist()) for r in rows}) == 7


def test_draws_are_uniform_below_one():
    u = uniform(0, 0, 0, 0, 0, 200_000, "cpu")
    assert float(u.min()) >= 0 and float(u.max()) < 1
    assert abs(float(u.double().mean()) - 0.5) < 0.005
    assert uniform(0, 0, 0, 0, 4, 0, "cpu").shape == (0,)
