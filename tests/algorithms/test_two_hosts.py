"""Two hosts of two processes, as network namespaces with a slow link between: the algorithms for machines are right there."""

from __future__ import annotations

from pathlib import Path

import pytest

from coccl_dsl.bench.hosts import run_nodes, two_hosts, unavailable

HERE = Path(__file__).resolve().parent


def test_two_hosts_of_two_processes():
    reason = unavailable()
    if reason:
        pytest.skip(f"no network namespaces: {reason}")
    with two_hosts("200mbit") as hosts:
        run_nodes(hosts, HERE / "hosts_worker.py", path=(HERE.parent / "runtime", HERE.parents[1]), timeout=200)
