"""How long a call should take: an alpha-beta model over links. It ranks algorithms and explains plans; it is no measurement.

    a level       max over ranks and axes of   latency + messages * message + bytes sent or received / bandwidth
    a launch      `launch` seconds
    a collective  the sum over its levels and its launches, one slice: no overlap of slices, no time for compute

A message goes over the link of the outermost axis in which its two ends differ: between nodes if the nodes differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..check.values import Trace, Wire


@dataclass(frozen=True)
class Link:
    """latency: seconds from a rank's step to its peer's; message: seconds of host or kernel time for each further message of a step;
    bandwidth: bytes a second that a rank sends, while it receives as many."""

    name: str
    latency: float
    message: float
    bandwidth: float


# On two H200 with NVLink: `symm` signals and stores, 340 GB/s. Between hosts: 25 Gbit/s Ethernet a GPU through NCCL. On CPU: gloo in one host, and
# over 1 Gbit/s.
NVLINK = Link("nvlink", 8e-6, 1e-6, 340e9)
NETWORK = Link("network", 40e-6, 10e-6, 3e9)
HOST = Link("gloo", 100e-6, 30e-6, 1e9)
ETHERNET = Link("gloo network", 200e-6, 50e-6, 125e6)


@dataclass(frozen=True)
class Links:
    """inside: between ranks of one host, or along all axes but the first; across: between hosts, or along the first axis of a mesh.
    launch: seconds for a kernel launch, from a graph."""

    inside: Link
    across: Link
    launch: float


GPU = Links(NVLINK, NETWORK, 4e-6)
CPU = Links(HOST, ETHERNET, 20e-6)


def axis_of(trace: Trace, source: int, target: int) -> int:
    """The outermost axis in which two ranks differ."""
    pairs = zip(trace.coordinates[source], trace.coordinates[target], strict=True)
    return next(i for i, (a, b) in enumerate(pairs) if a != b)


@dataclass(frozen=True)
class LevelTime:
    """One level: its seconds, the link that sets them, and bytes that the busiest rank sends on each axis."""

    seconds: float
    link: Link
    sent: Mapping[int, int]


def level_times(trace: Trace, wire_size: Callable[[Wire], int], links: Links = GPU) -> list[LevelTime]:
    """What each level of a proven world takes. wire_size: bytes of a wire."""
    mesh = len(trace.sizes) > 1
    sent: list[dict[tuple[int, int], list[int]]] = [{} for _ in range(trace.levels)]
    got: list[dict[tuple[int, int], list[int]]] = [{} for _ in range(trace.levels)]
    for m in trace.messages:
        size, axis = sum(wire_size(w) for w in m.sent), axis_of(trace, m.source, m.target)
        for table, rank in ((sent, m.source), (got, m.target)):
            row = table[m.level].setdefault((rank, axis), [0, 0])
            row[0] += 1
            row[1] += size
    times = []
    for level in range(trace.levels):
        worst, slowest = 0.0, links.inside
        busiest: dict[int, int] = {}
        for table in (sent, got):
            for (_, axis), (messages, size) in table[level].items():
                link = links.across if mesh and axis == 0 else links.inside
                seconds = link.latency + messages * link.message + size / link.bandwidth
                if seconds > worst:
                    worst, slowest = seconds, link
                if table is sent:
                    busiest[axis] = max(size, busiest.get(axis, 0))
        times.append(LevelTime(worst, slowest, busiest))
    return times


def predicted(times: list[LevelTime], launches: int, links: Links = GPU) -> float:
    """Seconds of a call in one slice."""
    return sum(t.seconds for t in times) + launches * links.launch
