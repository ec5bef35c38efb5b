"""Which shipped algorithm a call runs: a pure function of what all ranks know (collective, mesh, bytes, compressor, kind of device).

Each candidate is a list of steps; a step is (messages a rank, bytes a rank as a share of the whole tensor's wire) on each axis. The links of
`plan/model.py` turn these into seconds, and the quickest is taken. Rounding is bounded: a candidate with more than MAX_LOSSY lossy steps is
only taken where the compressor is raw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..plan.calibration import Verdict
from ..plan.model import Link, Links

MAX_LOSSY = 3
CHAIN_SLICES = 8


@dataclass(frozen=True)
class Phase:
    """Steps of one kind: `times` of them, `messages` and `share` of the tensor's wire that the busiest rank sends in each. axis: across,
    inside, or any (all ranks alike, wherever they are). bare: sent uncompressed, as two_level does inside a node."""

    axis: str
    times: int
    messages: int
    share: float
    bare: bool = False


@dataclass(frozen=True)
class Candidate:
    """phases and lossy steps as functions of the nodes m and the ranks a node k."""

    name: str
    mesh: bool
    lossy: Callable[[int, int], int]
    phases: Callable[[int, int], list[Phase]]


def _floor_log(n: int) -> int:
    return n.bit_length() - 1


def _rounds(n: int) -> int:
    """Steps of what doubles: those of the largest power of two, or the chain into the part beyond it."""
    beyond = n - (1 << _floor_log(n))
    return max(_floor_log(n), max(0, beyond - 1).bit_length() + 1)


def _ceil_log(n: int) -> int:
    return (n - 1).bit_length()


def _flat(name: str, lossy: Callable[[int], int], *phases: Callable[[int], tuple[int, int, float]]) -> Candidate:
    return Candidate(
        name,
        False,
        lambda m, k: lossy(m * k),
        lambda m, k: [Phase("any", *p(m * k)) for p in phases],
    )


def _folds(n: int) -> int:
    return int(n & (n - 1) > 0)


def _halving(n: int) -> list[tuple[int, int, float]]:
    return [(1, 1, 0.5 ** (i + 1)) for i in range(_floor_log(n))]


def _halving_doubling(m: int, k: int) -> list[Phase]:
    n = m * k
    fold = [Phase("any", 2, 1, 1.0)] * _folds(n)
    return [*fold, *(Phase("any", 2 * t, messages, share) for t, messages, share in _halving(n))]


def _two_level(m: int, k: int) -> list[Phase]:
    n = m * k
    return [Phase("inside", 2, k - 1, (k - 1) / k, True), Phase("across", 2, m - 1, (m - 1) / n)]


def _three_shot(m: int, k: int) -> list[Phase]:
    n = m * k
    return [
        Phase("inside", 1, k - 1, (k - 1) / k),
        Phase("across", 1, m - 1, (m - 1) / n),
        Phase("any", 1, n - 1, (n - 1) / n),
    ]


def _scatter_mesh(m: int, k: int) -> list[Phase]:
    return [Phase("inside", 1, k - 1, (k - 1) / k), Phase("across", 1, m - 1, (m - 1) / (m * k))]


def _gather_mesh(m: int, k: int) -> list[Phase]:
    return [Phase("across", 1, m - 1, (m - 1) / (m * k)), Phase("inside", 1, k - 1, (k - 1) / k)]


def _exchange_mesh(m: int, k: int) -> list[Phase]:
    return [Phase("inside", 1, k - 1, (k - 1) / k), Phase("across", 1, m - 1, (m - 1) / m)]


CANDIDATES: dict[str, tuple[Candidate, ...]] = {
    "all_reduce": (
        _flat("one_shot", lambda n: 1, lambda n: (1, n - 1, n - 1.0)),
        _flat("two_shot", lambda n: 2, lambda n: (2, n - 1, (n - 1) / n)),
        _flat(
            "recursive_doubling",
            lambda n: _floor_log(n) + _folds(n),
            lambda n: (_floor_log(n), 1, 1.0),
            lambda n: (2 * _folds(n), 1, 1.5),
        ),
        Candidate("halving_doubling", False, lambda m, k: _floor_log(m * k) + 1 + _folds(m * k), _halving_doubling),
        Candidate("three_shot", True, lambda m, k: 3, _three_shot),
        # Inside a node it is raw, whose rounding of sums to the tensor's dtype is not counted here.
        Candidate("two_level", True, lambda m, k: 2, _two_level),
    ),
    "reduce_scatter": (
        _flat("reduce_scatter_direct", lambda n: 1, lambda n: (1, n - 1, (n - 1) / n)),
        _flat("reduce_scatter_halving", _floor_log, lambda n: (_rounds(n), 1, (n - 1) / n / _rounds(n))),
        Candidate("reduce_scatter_mesh", True, lambda m, k: 2, _scatter_mesh),
    ),
    "all_gather": (
        _flat("all_gather_direct", lambda n: 1, lambda n: (1, n - 1, (n - 1) / n)),
        _flat("all_gather_doubling", lambda n: 1, lambda n: (_rounds(n), 1, (n - 1) / n / _rounds(n))),
        Candidate("all_gather_mesh", True, lambda m, k: 1, _gather_mesh),
    ),
    "all_to_all": (
        _flat("all_to_all_direct", lambda n: 1, lambda n: (1, n - 1, (n - 1) / n)),
        Candidate("all_to_all_mesh", True, lambda m, k: 1, _exchange_mesh),
    ),
    "broadcast": (
        _flat(
            "tree_broadcast",
            lambda n: 1,
            lambda n: (1, _ceil_log(n), float(_ceil_log(n))),
            lambda n: (_rounds(n) - 1, 1, 0.0),
        ),
        _flat("scatter_broadcast", lambda n: 1, lambda n: (min(2, n - 1), n - 1, 2 * (n - 1) / n / min(2, n - 1))),
        _flat("chain_broadcast", lambda n: 1, lambda n: (n - 2 + CHAIN_SLICES, 1, 1 / CHAIN_SLICES)),
    ),
    "reduce": (
        _flat("tree_reduce", _floor_log, lambda n: (_rounds(n), 1, 1.0)),
        _flat("scatter_reduce", lambda n: 2, lambda n: (2, n - 1, (n - 1) / n)),
        _flat("chain_reduce", lambda n: n - 1, lambda n: (n - 2 + CHAIN_SLICES, 1, 1 / CHAIN_SLICES)),
    ),
    "send_recv": (_flat("send_recv", lambda n: 1, lambda n: (1, 1, 1.0)),),
}


@dataclass(frozen=True)
class Choice:
    """name of the algorithm; considered: (name, expected seconds, why it is not taken, or "") of every candidate, quickest first. verdict: of a
    table measured on this machine, which then decides; with it, name may be NATIVE."""

    name: str
    nodes: int
    local: int
    considered: tuple[tuple[str, float, str], ...]
    verdict: Verdict | None = None

    def text(self) -> str:
        if self.verdict is not None:
            return f"{self.verdict.best}, as measured on this machine\n{self.verdict.text()}"
        lines = [
            f"{self.name}, for {self.nodes} node{'s' * (self.nodes > 1)} of {self.local} rank{'s' * (self.local > 1)}"
        ]
        for name, seconds, why in self.considered:
            taken = "taken" if name == self.name else why or "slower"
            lines.append(f"  {name:<24} {1e6 * seconds:12,.0f} us expected   {taken}")
        return "\n".join(lines)


def _seconds(phase: Phase, m: int, k: int, wire: float, plain: float, links: Links) -> float:
    if not phase.times or not phase.messages:
        return 0.0
    size = phase.share * (plain if phase.bare else wire)

    def over(link: Link, part: float) -> float:
        return link.latency + phase.messages * part * link.message + size * part / link.bandwidth

    if phase.axis != "any":
        return phase.times * over(links.across if phase.axis == "across" else links.inside, 1.0)
    n = m * k
    far = (n - k) / (n - 1)
    near = over(links.inside, 1 - far) if far < 1 else 0.0
    return phase.times * max(near, over(links.across, far) if far else 0.0)


def choose(kind: str, nodes: int, local: int, plain: float, ratio: float, links: Links, lossless: bool) -> Choice:
    """The quickest candidate for a whole tensor of `plain` bytes (all ranks' shards together) whose wire takes `ratio` of them.

    lossless: the compressor is raw, so the number of lossy steps does not matter.
    """
    found: list[tuple[str, float, str]] = []
    for c in CANDIDATES[kind]:
        if c.mesh and (nodes < 2 or local < 2):
            continue
        phases = c.phases(nodes, local)
        seconds = sum(_seconds(p, nodes, local, plain * ratio, plain, links) for p in phases)
        seconds += 2 * links.launch
        lossy = c.lossy(nodes, local)
        why = "" if lossless or lossy <= MAX_LOSSY else f"{lossy} lossy steps"
        found.append((c.name, seconds, why))
    found.sort(key=lambda f: (f[1], f[0]))
    return Choice(next(f[0] for f in found if not f[2]), nodes, local, tuple(found))


def node_runs(hosts: list[str]) -> tuple[int, int] | None:
    """(nodes, ranks a node) where the hosts of ranks 0, 1, .. come in runs of one length, as a mesh needs; else None."""
    local = next((i for i, h in enumerate(hosts) if h != hosts[0]), len(hosts))
    nodes = len(hosts) // local
    runs = [hosts[i * local : (i + 1) * local] for i in range(nodes)]
    even = nodes * local == len(hosts) and all(len(set(run)) == 1 for run in runs)
    return (nodes, local) if even and len({run[0] for run in runs}) == nodes else None
