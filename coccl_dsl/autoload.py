"""What the `torch.backends` entry point runs at the end of `import torch`.

Nothing, unless COCCL_POLICY names a policy. It runs in every process that imports torch (torchrun itself, data loaders, compile workers), so
with a policy it only puts a wrapper around init_process_group, whose first call turns the transparent path on. It never raises: torch would
take that for a broken installation.
"""

from __future__ import annotations

import os

VARIABLE = "COCCL_POLICY"


def load() -> None:
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        _install(path)
    except Exception as e:
        import warnings

        warnings.warn(f"coccl_dsl: {VARIABLE}={path} is not in force: {type(e).__name__}: {e}", stacklevel=2)


def _install(path: str) -> None:
    from functools import wraps

    import torch.distributed as dist

    if not dist.is_available():
        return
    c10d = dist.distributed_c10d
    native = c10d.init_process_group

    @wraps(native)
    def init_process_group(*args, **kwargs):
        if c10d.init_process_group is init_process_group:
            c10d.init_process_group = dist.init_process_group = native
        from .torch.transparent import enable_from_environment

        enable_from_environment(path)
        return c10d.init_process_group(*args, **kwargs)

    c10d.init_process_group = dist.init_process_group = init_process_group
