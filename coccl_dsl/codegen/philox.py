"""Philox4x32-10 in torch integer arithmetic: the draws of stochastic rounding, the same on every device and in every back end.

A draw depends on the seed, the call number, the value number of what is compressed, the stream (which draw of the compressor) and the element's
index in its chunk: never on slices, frames, launches or devices.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_UNIT = 2.0**-24

Word = int | Tensor


def philox4x32(counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four output words of Philox4x32-10 for each counter.

    counter  four words, each an int or an int64 tensor with values in [0, 2^32)
    key      two words, likewise
    returns  four int64 tensors of the broadcast shape, values in [0, 2^32)
    """
    c0, c1, c2, c3 = _on_one_device(counter)
    k0, k1 = key
    for _ in range(_ROUNDS):
        # A 64-bit product wraps into the sign; shifting it arithmetically and masking still gives its high word.
        even, odd = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (odd >> 32 & _WORD) ^ c1 ^ k0, (even >> 32 & _WORD) ^ c3 ^ k1
        c1, c3 = odd & _WORD, even & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


def uniform(
    seed: Word, call: Word, key: int, stream: int, start: int, count: int, device: torch.device | str
) -> Tensor:
    """`count` draws in [0, 1) for the elements `start`, `start` + 1, ... of a chunk: float32[count] on `device`.

    seed, call  ints, or int64 tensors of one element on `device` (read without a host sync)
    key         value number of what is compressed, its low 64 bits count
    stream      which stochastic draw of the compressor
    """
    first = start >> 2
    quads = ((start + count + 3) >> 2) - first
    counter = torch.arange(first, first + quads, dtype=torch.int64, device=device) & _WORD
    words = (counter, call & _WORD, key & _WORD, key >> 32 & _WORD)
    out = philox4x32(words, (seed & _WORD, (seed >> 32 & _WORD) ^ (stream * _WEYL[0] & _WORD)))
    drawn = torch.stack(out, dim=-1).reshape(-1)[start & 3 : (start & 3) + count]
    return (drawn >> 8).to(torch.float32) * _UNIT


def _on_one_device(words: tuple[Word, Word, Word, Word]) -> list[Tensor]:
    """The words as tensors of one device and shape, so that 64-bit products never run in Python's unbounded integers."""
    like = next((w for w in words if isinstance(w, Tensor)), torch.zeros((), dtype=torch.int64))
    return [
        w.to(torch.int64) if isinstance(w, Tensor) else torch.full((), w, dtype=torch.int64, device=like.device)
        for w in words
    ]
