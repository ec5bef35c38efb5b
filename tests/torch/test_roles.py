"""What a group is for, by its name and by who runs; patches that come with an import and go without a trace; the entry point."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from coccl_dsl.policy import read_policy_text
from coccl_dsl.torch import claims, roles, transparent
from coccl_dsl.torch.groups import Groups
from coccl_dsl.torch.intercept import SCHEMAS, unknown_schemas
from coccl_dsl.torch.patches import Patches

ROOT = Path(__file__).resolve().parents[2]
DESCRIPTIONS = {
    "dp": "mesh_dp mesh_dp_replicate mesh_batch DATA_PARALLEL_GROUP DATA_PARALLEL_GROUP_WITH_CP EXPERT_DATA_PARALLEL_GROUP "
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP DATA_PARALLEL_GROUP_WITH_CP_AG INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP",
    "fsdp": "mesh_fsdp mesh_dp_shard mesh_dp_shard_cp mesh_efsdp",
    "tp": "mesh_tp TENSOR_MODEL_PARALLEL_GROUP EXPERT_TENSOR_PARALLEL_GROUP tp",
    "pp": "mesh_pp PIPELINE_MODEL_PARALLEL_GROUP",
    "ep": "mesh_ep EXPERT_MODEL_PARALLEL_GROUP",
    "cp": "mesh_cp CONTEXT_PARALLEL_GROUP HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0",
    "": "default_pg undefined mesh_dim_0 mesh_loss_mesh mesh_world MODEL_PARALLEL_GROUP EMBEDDING_GROUP DATA_PARALLEL_GROUP_WITH_CP_GLOO "
    "TENSOR_AND_DATA_PARALLEL_GROUP",
}


@pytest.mark.parametrize("role", DESCRIPTIONS)
def test_descriptions_of_megatron_torchtitan_and_meshes_say_the_role(role: str):
    assert {d: roles.role_of_name(d) or "" for d in DESCRIPTIONS[role].split()} == dict.fromkeys(
        DESCRIPTIONS[role].split(), role
    )


def test_this_torch_has_the_operators_that_the_kernels_are_written_for():
    assert unknown_schemas() == []


def test_another_torch_is_left_alone_with_one_warning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(SCHEMAS, "send", SCHEMAS["send"] + "!")
    policy = read_policy_text('[[rule]]\non = "dp"\ncompressor = "int8"')
    with pytest.warns(UserWarning, match="does not know.*c10d::send") as told:
        assert not transparent.enable(policy)
    assert len(told) == 1 and not installed()


def installed() -> set[str]:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return {n for n in SCHEMAS if has(f"c10d::{n}", "BackendSelect")}


def test_nothing_is_installed_without_a_rule_and_all_of_it_goes_again():
    import torch.distributed as dist

    def patched() -> list[object]:
        group, ddp = dist.ProcessGroup, torch.nn.parallel.DistributedDataParallel
        return [dist.new_group, dist.batch_isend_irecv, dist.init_process_group, group._start_coalescing, ddp.__init__]

    before = patched()
    assert not transparent.enable(read_policy_text("arena_mib = 4"))
    assert not installed() and patched() == before
    text = '[[rule]]\non = "dp.all_reduce"\ncompressor = "error_feedback(int8)"'
    try:
        assert transparent.enable(read_policy_text(text))
        assert not installed(), "no group is there that the rule may be for"
        assert transparent._on is not None
        transparent._on.kernels.install("all_reduce")
        assert installed() == {"allreduce_", "allreduce_coalesced_"}
        assert all(a is not b for a, b in zip(patched(), before, strict=True))
        assert transparent.enable(read_policy_text(text)), "the same one again"
        with pytest.raises(ValueError, match="in force already"):
            transparent.enable(read_policy_text(text.replace("int8", "int4")))
    finally:
        transparent.disable()
    assert not installed() and patched() == before


def test_reasons_to_go_native_do_not_end_each_other():
    with roles.exact("state_dict"):
        roles.coalesce(1)
        assert roles.why_exact() == "state_dict"
        roles.coalesce(-1)
        assert roles.why_exact() == "state_dict"
        roles.coalesce(1)
    assert roles.why_exact() == "inside a coalescing region"
    with roles.exact("inner"):
        pass
    assert roles.why_exact() == "inside a coalescing region"
    roles.coalesce(-1)
    roles.coalesce(-1)
    assert roles.why_exact() == ""
    with roles.premultiplied("premul(0.5)"):
        with roles.premultiplied("premul(0.25)"):
            pass
        assert roles.premul() == "premul(0.5)"
    assert roles.premul() is None


def test_patches_come_with_a_later_import_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "late_module.py").write_text("def f():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    patches = Patches()
    patches.on_import("late_module", lambda module: patches.wrap(module, "f", lambda native: lambda: native() + 1))
    module = importlib.import_module("late_module")
    assert module.f() == 2
    patches.undo()
    assert module.f() == 1
    assert not any(type(finder).__module__ == "coccl_dsl.torch.patches" for finder in sys.meta_path)


def test_megatrons_messages_say_their_direction(monkeypatch: pytest.MonkeyPatch):
    seen = {}

    def _batched_p2p_ops(**given):
        seen.update({k: getattr(t, "_coccl_direction", "") for k, t in given.items() if isinstance(t, torch.Tensor)})

    module = SimpleNamespace(_batched_p2p_ops=_batched_p2p_ops)
    monkeypatch.setitem(sys.modules, "megatron.core.pipeline_parallel.p2p_communication", module)
    patches = Patches()
    claims.install(patches, Groups(read_policy_text('[[rule]]\non = "pp.send.forward"\ncompressor = "int8"'), print))
    try:
        names = ("tensor_send_next", "tensor_recv_prev", "tensor_send_prev", "tensor_recv_next")
        module._batched_p2p_ops(**{n: torch.zeros(1) for n in names[:3]}, tensor_recv_next=None, group=None)
    finally:
        patches.undo()
    assert seen == dict(zip(names[:3], ("forward", "forward", "backward"), strict=True))


ENTRY = """
import os, sys
import torch
from torch.distributed import distributed_c10d as c10d
def heavy():
    return [m for m in sys.modules if m.startswith("coccl_dsl") and m not in ("coccl_dsl", "coccl_dsl.autoload")]
native = c10d.init_process_group
assert "coccl_dsl.autoload" in sys.modules and not heavy(), heavy()
assert "coccl_dsl" not in native.__code__.co_filename
os.environ["COCCL_POLICY"] = "/no/such/policy.toml"
sys.modules["coccl_dsl.autoload"].load()
assert c10d.init_process_group is not native and torch.distributed.init_process_group is c10d.init_process_group
assert not heavy(), heavy()
"""


def test_the_entry_point_does_nothing_before_init_process_group(tmp_path: Path):
    info = tmp_path / "coccl_dsl-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: coccl-dsl\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ncoccl_dsl = coccl_dsl.autoload:load\n")
    env = {k: v for k, v in os.environ.items() if k != "COCCL_POLICY"} | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", ENTRY], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
