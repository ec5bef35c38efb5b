"""A small real problem for 4 workers: predict the next letter of Python's own documentation from the two before it.

Multinomial logistic regression on pydoc_data.topics. Each worker has a part of the text, and for a third of its places some where certain
letters follow, so that the workers' gradients differ and do not vanish where their sum does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pydoc_data.topics import topics

import torch

WORKERS, LETTERS, SIZE = 4, " abcdefghijklmnopqrstuvwxyz.,()_", 32
PARAMETERS = 3 * 2048
Reduce = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


@cache
def text_of(worker: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The two letters before and the letter, int64 [n] each, of this worker's places; all for worker 4."""
    known = {c: i for i, c in enumerate(LETTERS)}
    words = " ".join(topics[t] for t in sorted(topics)).lower()
    codes = torch.tensor([known.get(c, 0) for c in words])
    codes = codes[: (len(codes) - 2) // WORKERS * WORKERS + 2]
    order = torch.arange(len(codes) - 2)
    if worker < WORKERS:
        some = order % 3 == 0
        alike = order[some][torch.argsort(codes[2:][some], stable=True)]
        shares = [v[: len(v) // WORKERS * WORKERS].view(WORKERS, -1)[worker] for v in (alike, order[~some])]
        order = torch.cat(shares)
    return codes[:-2][order], codes[1:-1][order], codes[2:][order]


def loss_and_gradient(w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[float, torch.Tensor]:
    """w holds a table of logits for each letter before, one for each letter before that, and a bias row."""
    tables = w[: (2 * SIZE + 1) * SIZE].view(2 * SIZE + 1, SIZE)
    logits = tables[a] + tables[SIZE + b] + tables[2 * SIZE]
    p = torch.log_softmax(logits, 1)
    loss = -p.gather(1, c[:, None]).mean()
    d = p.exp()
    d.scatter_add_(1, c[:, None], torch.full((len(c), 1), -1.0))
    d /= len(c)
    g = torch.zeros(w.numel())
    out = g[: (2 * SIZE + 1) * SIZE].view(2 * SIZE + 1, SIZE)
    out.index_add_(0, a, d)
    out.index_add_(0, SIZE + b, d)
    out[2 * SIZE] = d.sum(0)
    return float(loss), g


def gradients(w: torch.Tensor, step: int, batch: int = 256) -> list[torch.Tensor]:
    found = []
    for worker in range(WORKERS):
        a, b, c = text_of(worker)
        pick = torch.randint(0, len(a), (batch,), generator=torch.Generator().manual_seed(step * WORKERS + worker))
        found.append(loss_and_gradient(w, a[pick], b[pick], c[pick])[1])
    return found


def rate(step: int, steps: int) -> float:
    return 1.0 * min(1.0, 2 * (1 - step / steps))


def train(
    reduce: Reduce, steps: int = 1000, w: torch.Tensor | None = None, start: int = 0, spoil: int = -1
) -> torch.Tensor:
    """The weights after steps start .. steps. reduce gives every worker the mean gradient. At step `spoil` a worker's gradient has an Inf;
    that step is skipped, as a loss scaler does."""
    w = torch.zeros(PARAMETERS) if w is None else w.clone()
    for step in range(start, steps):
        gs = gradients(w, step)
        if step == spoil:
            gs[1][5] = float("inf")
        mean = reduce(gs)[0]
        if mean.isfinite().all():
            w -= rate(step, steps) * mean
    return w


def final_loss(w: torch.Tensor) -> float:
    return loss_and_gradient(w, *text_of(WORKERS))[0]
