"""Real gloo processes: bits, agreement, faults. Each world is spawned once."""

from __future__ import annotations

import pytest
from worlds import spawn

from coccl_dsl.cli import record

FLAT = (
    "ring,two_shot,one_shot,all_gather_direct,reduce_scatter_direct,halving_doubling,all_to_all_direct,tree_broadcast"
)
MESH = "three_shot,sdp4bit,all_gather_mesh"


@pytest.mark.parametrize("world", [2, 3])
def test_processes_equal_simulate(world):
    out = spawn("gloo_equality.py", world, FLAT, "int8,int4,raw", "bf16", str(world), "40003")
    assert "cases" in out[0]


def test_mesh_of_processes_equals_simulate():
    spawn("gloo_equality.py", 4, MESH, "int4", "bf16,f32", "2x2", "40003")


@pytest.mark.full
@pytest.mark.parametrize("world", [2, 3, 4, 5])
def test_every_case_equals_simulate(world):
    spawn("gloo_equality.py", world, FLAT, "int8,int4,raw", "f32,bf16,f16", str(world), "100003", timeout=900)


@pytest.mark.full
@pytest.mark.parametrize("mesh", ["2x2", "2x3"])
def test_every_mesh_case_equals_simulate(mesh):
    a, b = mesh.split("x")
    spawn("gloo_equality.py", int(a) * int(b), MESH, "int8,int4,raw", "f32,bf16,f16", mesh, "100003", timeout=900)


def test_state_and_stochastic_rounding_over_calls():
    spawn("gloo_state.py", 3)


def test_slices_transport_and_fusing_change_no_bit():
    spawn("gloo_combinations.py", 4)


def test_ranks_that_differ_raise_everywhere():
    for out in spawn("gloo_faults.py", 2, "differ"):
        assert "agreed to disagree" in out


def test_after_a_bind_that_failed_on_one_rank_the_ranks_are_in_step():
    assert all("in step" in out for out in spawn("gloo_faults.py", 2, "again"))


def test_a_dead_peer_raises_within_the_timeout_and_names_the_step():
    out = spawn("gloo_faults.py", 3, "dead", timeout=60)
    assert "named" in out[0] and "named" in out[1]


def test_a_missing_peer_raises_within_the_timeout_and_the_records_name_it(tmp_path, capsys):
    out = spawn("gloo_faults.py", 2, "missing", timeout=60, env={"COCCL_RECORD": str(tmp_path)})
    assert "named" in out[0]
    assert record.main([str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert (
        "rank 1 did not make call 0: all_reduce two_shot(int8(group=128, round=nearest, scale_type=bf16)) sum of f32"
        in said
    )
    assert "rank 0 failed: `two_shot` on rank 0: step 0" in said


def test_a_rank_that_does_not_bind_is_named():
    out = spawn("gloo_faults.py", 2, "unbound", timeout=60)
    assert "named" in out[0]


def test_subgroups_async_and_output_shapes(tmp_path):
    spawn("gloo_calls.py", 4, env={"COCCL_RECORD": str(tmp_path)})
    assert record.main([str(tmp_path)]) == 0, "all ranks of each group count its calls alike"


def test_a_session_binds_without_a_word():
    assert "sessions right" in spawn("gloo_session.py", 3)[0]


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.full), 3, pytest.param(4, marks=pytest.mark.full)])
def test_all_gathers_of_the_backend_give_the_same_bits(world):
    assert "all-gathers issued" in spawn("gloo_gather.py", world)[0]
