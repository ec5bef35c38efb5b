"""The calibration table that a group's ranks go by: rank 0's."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
import torch.distributed as dist

from ..plan.calibration import Place, Table, parse, read_table, table_path
from .agreement import Meeting
from .errors import BindError


@dataclass(frozen=True)
class Measured:
    """table: None where rank 0 has none."""

    table: Table | None
    place: Place

    @property
    def in_force(self) -> Table | None:
        """The table, or None too under torch.use_deterministic_algorithms(True), where size and world alone decide."""
        return None if torch.are_deterministic_algorithms_enabled() else self.table


def host_text() -> str:
    """Where this rank runs: equal texts, one machine. torchrun's nodes are nodes to us, wherever they run; NCCL_HOSTID says so to NCCL."""
    from .transports.symm import host_name

    return f"{host_name()}/{os.environ.get('GROUP_RANK', '')}"


def link_of(group: dist.ProcessGroup, device: torch.device, nodes: int) -> str:
    """What torch's own collectives of a group go over, as far as can be told."""
    if device.type != "cuda":
        return "gloo"
    if "nccl" not in dist.get_backend(group):
        return dist.get_backend(group)
    if nodes > 1 or (os.environ.get("NCCL_P2P_DISABLE") == "1" and os.environ.get("NCCL_SHM_DISABLE") == "1"):
        return "nccl net"
    return "nccl shm" if os.environ.get("NCCL_P2P_DISABLE") == "1" else "nccl p2p"


def place_of(group: dist.ProcessGroup, device: torch.device, hosts: Sequence[str]) -> Place:
    """Where this rank stands."""
    nodes = len(set(hosts))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return Place(name, link_of(group, device, nodes), len(hosts), nodes)


def agree_on_table(meeting: Meeting, group: dist.ProcessGroup, device: torch.device, hosts: Sequence[str]) -> Measured:
    """Collective. A rank without a table takes rank 0's.

    Raises BindError on all ranks where a rank's table cannot be read, or is another than rank 0's.
    """
    own, problem = None, ""
    try:
        own = _read(table_path(), _stamp(table_path()))
    except ValueError as e:
        problem = str(e)
    first = dist.get_rank(group) == 0
    place = place_of(group, device, hosts)
    told = {"digest": own.digest if own else "", "problem": problem, "path": str(table_path())}
    if first:
        told |= {"table": own.text() if own else "", "device": place.device, "link": place.link}
    everyone = [json.loads(t) for t in meeting.gather("table", json.dumps(told))]
    bad = [f"rank {r}: {t['problem']}" for r, t in enumerate(everyone) if t["problem"]]
    if bad:
        raise BindError(f"{meeting.what}: the calibration table cannot be read: " + "; ".join(bad))
    lead = everyone[0]
    odd = [r for r, t in enumerate(everyone) if t["digest"] not in ("", lead["digest"])] if lead["digest"] else []
    if odd:
        shown = "; ".join(f"rank {r}: {everyone[r]['digest']} of {everyone[r]['path']}" for r in [0, *odd[:3]])
        raise BindError(
            f"{meeting.what}: the ranks do not agree: `table` differs on ranks {odd} ({shown}). Copy rank 0's file to the others, or remove theirs"
        )
    table = own if first or not lead["table"] else _parsed(lead["table"])
    return Measured(table if lead["table"] else None, Place(lead["device"], lead["link"], place.ranks, place.nodes))


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=4)
def _read(path: Path, stamp: tuple[int, int] | None) -> Table | None:
    return read_table(path)


_parsed = lru_cache(maxsize=4)(parse)
