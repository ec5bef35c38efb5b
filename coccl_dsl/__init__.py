"""coccl_dsl: compressed collectives, written as short texts, proven, compiled to Triton, called from PyTorch.

    op = coccl_dsl.compile("ring_q4").bind(like=x)     # inside torch.distributed
    y = op(x)

Importing this package imports neither torch nor triton.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .codegen.codec_api import codec
    from .diagnostics import CompileError
    from .notebook.explorer import explore
    from .pipeline import Collective, compile, compile_text
    from .runtime.errors import BindError, CollectiveError, CollectiveTimeout
    from .runtime.op import LocalGroup, Op
    from .runtime.simulate import simulate
    from .torch.functions import (
        all_gather,
        all_reduce,
        all_to_all,
        broadcast,
        explain,
        recv,
        reduce,
        reduce_scatter,
        send,
    )
    from .torch.transparent import disable, enable, step

__version__ = "0.1.0"

# `import torch` imports this package where its entry point is installed (autoload.py), so nothing is imported before it is asked for.
_LAZY = {
    "Collective": "coccl_dsl.pipeline",
    "CompileError": "coccl_dsl.diagnostics",
    "compile": "coccl_dsl.pipeline",
    "compile_text": "coccl_dsl.pipeline",
    "disable": "coccl_dsl.torch.transparent",
    "enable": "coccl_dsl.torch.transparent",
    "step": "coccl_dsl.torch.transparent",
    "simulate": "coccl_dsl.runtime.simulate",
    "codec": "coccl_dsl.codegen.codec_api",
    "LocalGroup": "coccl_dsl.runtime.op",
    "Op": "coccl_dsl.runtime.op",
    "BindError": "coccl_dsl.runtime.errors",
    "CollectiveError": "coccl_dsl.runtime.errors",
    "CollectiveTimeout": "coccl_dsl.runtime.errors",
    "all_gather": "coccl_dsl.torch.functions",
    "all_reduce": "coccl_dsl.torch.functions",
    "all_to_all": "coccl_dsl.torch.functions",
    "broadcast": "coccl_dsl.torch.functions",
    "explain": "coccl_dsl.torch.functions",
    "explore": "coccl_dsl.notebook.explorer",
    "recv": "coccl_dsl.torch.functions",
    "reduce": "coccl_dsl.torch.functions",
    "reduce_scatter": "coccl_dsl.torch.functions",
    "send": "coccl_dsl.torch.functions",
}

__all__ = [
    "BindError",
    "Collective",
    "CollectiveError",
    "CollectiveTimeout",
    "CompileError",
    "LocalGroup",
    "Op",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "codec",
    "compile",
    "compile_text",
    "disable",
    "enable",
    "explain",
    "explore",
    "recv",
    "reduce",
    "reduce_scatter",
    "send",
    "simulate",
    "step",
]


def load_ipython_extension(ip: Any) -> None:
    """`%load_ext coccl_dsl`: %%coll, %%comp and %coll_bench."""
    from .notebook import load_ipython_extension

    load_ipython_extension(ip)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'coccl_dsl' has no attribute {name!r}")
