"""The functions of `coccl_dsl`: what they pick, and that they are right, over real gloo processes; send_recv between two of many ranks."""

from __future__ import annotations

import subprocess
import sys

import pytest
from worlds import spawn

from coccl_dsl.plan.model import CPU, GPU
from coccl_dsl.torch.choose import CANDIDATES, choose, node_runs

HERE = "../algorithms/"


def test_functions_over_processes():
    spawn(HERE + "gloo_functions.py", 4)


def test_send_recv_between_two_ranks_of_a_group():
    spawn(HERE + "gloo_pairs.py", 4)


def test_the_functions_are_loaded_lazily():
    code = (
        "import sys, coccl_dsl; assert 'torch' not in sys.modules; coccl_dsl.all_reduce; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def pick(kind, m, k, size, links=GPU, ratio=0.5, lossless=False):
    return choose(kind, m, k, size, ratio, links, lossless).name


def test_small_tensors_take_few_steps_and_large_ones_few_bytes():
    assert pick("all_reduce", 1, 4, 1 << 12) == "one_shot"
    assert pick("all_reduce", 1, 4, 1 << 28) == "two_shot"
    assert pick("all_reduce", 1, 64, 1 << 28) == "two_shot"
    assert pick("broadcast", 1, 8, 1 << 10) == "tree_broadcast"
    assert pick("broadcast", 1, 8, 1 << 28) in ("scatter_broadcast", "chain_broadcast")
    assert pick("reduce", 1, 8, 1 << 28) == "scatter_reduce"


def test_a_mesh_is_used_where_nodes_are_far_apart():
    assert pick("all_reduce", 4, 8, 1 << 28) in ("two_level", "three_shot")
    assert pick("reduce_scatter", 4, 8, 1 << 28) == "reduce_scatter_mesh"
    assert pick("all_gather", 4, 8, 1 << 28) == "all_gather_mesh"
    assert not any(c.mesh and c.name == pick(kind, 1, 8, 1 << 28) for kind, cs in CANDIDATES.items() for c in cs)


def test_lossy_algorithms_are_left_to_those_who_name_them():
    few = choose("all_reduce", 1, 64, 1 << 12, 0.5, GPU, False)
    assert any(why.endswith("lossy steps") for _, _, why in few.considered)
    assert dict((n, w) for n, _, w in few.considered)[few.name] == ""
    assert pick("all_reduce", 1, 64, 1 << 12, lossless=True) == "recursive_doubling"


def test_the_choice_is_told_with_its_reasons():
    text = choose("all_reduce", 2, 4, 1 << 26, 0.25, CPU, False).text()
    assert "for 2 nodes of 4 ranks" in text and text.count("us expected") == len(CANDIDATES["all_reduce"])
    assert text.count("taken") == 1


@pytest.mark.parametrize(
    ("hosts", "found"),
    [
        ("aabb", (2, 2)),
        ("aaaa", (1, 4)),
        ("abab", None),
        ("aab", None),
        ("abc", (3, 1)),
        ("aabbaa", None),
        ("a", (1, 1)),
    ],
)
def test_hosts_make_a_mesh_only_in_even_runs(hosts, found):
    assert node_runs(list(hosts)) == found
