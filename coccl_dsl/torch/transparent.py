"""Compressed collectives with no change to training code: `enable(policy)`, or COCCL_POLICY in the environment (see coccl_dsl/autoload.py).

    coccl_dsl.enable("policy.toml")        before or after init_process_group, on all ranks at the same place
    coccl_dsl.step()                       after each optimizer step, where the policy says steps = "step()"
    print(coccl_dsl.torch.report())
    coccl_dsl.disable()

Groups stay native ProcessGroups; kernels on the c10d operators look at each call (intercept.py). A few functions of torch are wrapped, to learn
what a group is for and to be there when groups are made and destroyed.
"""

from __future__ import annotations

import atexit
import threading
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from ..diagnostics import CompileError
from ..policy import Policy, read_policy
from ..runtime.errors import BindError
from . import claims, traffic
from .groups import Groups
from .intercept import Kernels, unknown_schemas
from .p2p import batch
from .patches import Patches
from .saving import loaded, saved


class _Path:
    """The transparent path while it is on."""

    def __init__(self, policy: Policy):
        self.kernels = Kernels()
        self.groups = self.kernels.groups = Groups(policy, self.kernels.install)
        self.patches = Patches()
        c10d = dist.distributed_c10d
        everywhere = (c10d, dist)
        for name in ("init_process_group", "new_group", "split_group", "shrink_group"):
            self.patches.wrap(everywhere, name, self._opening)
        self.patches.wrap(everywhere, "destroy_process_group", self._closing)
        self.patches.wrap(everywhere, "batch_isend_irecv", self._batching)
        self.patches.on_import("torch.distributed.device_mesh", self._mesh)
        claims.install(self.patches, self.groups)
        traffic.hold(self.memory)
        atexit.register(self.groups.write_log)

    def _opening(self, native):
        def call(*args: Any, **kwargs: Any) -> Any:
            made = native(*args, **kwargs)
            self.groups.open(made if made is not None else dist.group.WORLD)
            return made

        return call

    def _mesh(self, module: ModuleType) -> None:
        """DeviceMesh has names of its own for what makes groups."""
        for name in ("init_process_group", "new_group", "split_group"):
            made = getattr(dist.distributed_c10d, name, None)
            if made is not None and hasattr(module, name):
                self.patches.set(module, name, made)

    def _closing(self, native):
        def call(group: dist.ProcessGroup | None = None) -> None:
            gone = None if group is None or group is dist.group.WORLD else group
            self.groups.close(gone)
            native(group)

        return call

    def _batching(self, native):
        def call(p2p_op_list: list[dist.P2POp]) -> list[dist.Work]:
            return batch(self.groups, native, p2p_op_list)

        return call

    def memory(self) -> list[traffic.Memory]:
        return self.groups.memory()

    def off(self) -> None:
        self.kernels.remove()
        self.patches.undo()
        self.groups.close(None)
        traffic.release(self.memory)
        atexit.unregister(self.groups.write_log)


_on: _Path | None = None
_lock = threading.RLock()


def enable(policy: str | Path | Policy) -> bool:
    """Install a policy: a file, or a `Policy`. True where it is in force.

    Collective once groups exist: all ranks call it at the same place. A policy without rules installs nothing. On a torch whose c10d operators
    are not the known ones it warns once and leaves everything native.

    Raises CompileError with line and column for what is wrong in the policy; BindError on all ranks where they do not have the same one, or
    where one is in force already.
    """
    global _on
    made = policy if isinstance(policy, Policy) else read_policy(policy)
    with _lock:
        if _on is not None:
            if _on.groups.policy == made:
                return True
            raise BindError("a policy is in force already: call coccl_dsl.disable() first, on all ranks")
        if made.idle:
            return False
        odd = unknown_schemas()
        if odd:
            warnings.warn(
                f"coccl_dsl leaves collectives native: torch {torch.__version__} has operators that it does not know ({'; '.join(odd)})",
                stacklevel=2,
            )
            return False
        _on = _Path(made)
        try:
            # Insertion order is the order in which groups were made, the same on all ranks of two groups.
            for pg in list(dist.distributed_c10d._world.pg_map) if dist.is_initialized() else ():
                _on.groups.open(pg)
        except BaseException:
            disable()
            raise
    return True


def enable_from_environment(path: str) -> None:
    """What COCCL_POLICY does at the first init_process_group. A policy that cannot be read on one rank must be heard of on the others, which
    wait for its word: this rank agrees to nothing, so that all of them raise."""
    try:
        enable(path)
    except CompileError as e:
        enable(Policy(str(e), path, (), problem=str(e)))


def disable() -> None:
    """Take everything off again. Calls that are under way end as they began."""
    global _on
    with _lock:
        if _on is not None:
            _on.off()
            _on = None


def step() -> None:
    """A training step is over: what after_step counts where the policy says steps = "step()". All ranks call it at the same place."""
    if _on is not None:
        _on.groups.steps += 1


class TransparentState:
    """Steps, numbers of calls and states of compressors of the transparent path, for torch.distributed.checkpoint or torch.save.

        dcp.save({"model": model, "coccl_dsl": coccl_dsl.torch.TransparentState()}, checkpoint_id=...)

    A rank's part is bytes under its rank's name. Loading is for the same number of ranks, groups and policy; call it on all ranks after enable.
    """

    def state_dict(self) -> dict[str, bytes]:
        return {f"rank{_rank()}": saved(_on.groups.state_dict() if _on is not None else {})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError where there is no part for this rank, or no policy is in force."""
        name = f"rank{_rank()}"
        if name not in state:
            raise ValueError(f"the saved state has no part {name!r}; it has {', '.join(sorted(state)) or 'none'}")
        told = loaded(state[name])
        if told and _on is None:
            raise ValueError("no policy is in force: call coccl_dsl.enable(policy) before loading its state")
        if told and _on is not None:
            _on.groups.load_state_dict(told)

    def reset(self, name: str | None = None) -> None:
        """Forget the states of compressors, of one role's op (`fsdp.all_gather`) or of all. Call it on all ranks."""
        if _on is not None:
            _on.groups.reset(name)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
