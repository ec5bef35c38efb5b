"""GPT and Qwen2.5 from transformers' configs, and one pipeline stage of such a model.

Blocks, norms, embeddings and rotary positions are transformers' own modules. Only the loop over blocks is here: `torch.distributed.pipelining`
needs a module that takes hidden states, and the models' own forward starts from tokens. Embedding and head are not tied, as they live in
different stages. Tensor parallelism splits attention and MLP by heads and columns; embedding, norms and head are on all its ranks.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module
from transformers import AutoModelForCausalLM, GPT2Config, PretrainedConfig, Qwen2Config
from transformers.pytorch_utils import Conv1D


def _gpt(width: int, layers: int, heads: int, vocabulary: int = 50304, positions: int = 2048) -> dict[str, Any]:
    return dict(n_embd=width, n_layer=layers, n_head=heads, vocab_size=vocabulary, n_positions=positions)


def _qwen(width: int, layers: int, heads: int, kv: int, inner: int, vocabulary: int = 151936) -> dict[str, Any]:
    return dict(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        intermediate_size=inner,
        vocab_size=vocabulary,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )


MODELS: dict[str, dict[str, Any]] = {
    "gpt-tiny": _gpt(64, 2, 4, 256, 256),
    "gpt-125m": _gpt(768, 12, 12),
    "gpt-350m": _gpt(1024, 24, 16),
    "gpt-1.3b": _gpt(2048, 24, 16),
    "gpt-2.7b": _gpt(2560, 32, 32),
    "gpt-6.7b": _gpt(4096, 32, 32),
    "qwen2.5-tiny": _qwen(64, 2, 4, 2, 128, 256),
    "qwen2.5-0.5b": _qwen(896, 24, 14, 2, 4864),
    "qwen2.5-1.5b": _qwen(1536, 28, 12, 2, 8960),
    "qwen2.5-3b": _qwen(2048, 36, 16, 2, 11008),
    "qwen2.5-7b": _qwen(3584, 28, 28, 4, 18944, 152064),
}


# Text is bytes, so no token is special.
COMMON: dict[str, Any] = dict(use_cache=False, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None)


def config_of(name: str) -> PretrainedConfig:
    """transformers' config of a model of MODELS, with no dropout, and with embedding and head apart."""
    if name.startswith("gpt"):
        return GPT2Config(**MODELS[name], **COMMON, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    return Qwen2Config(**MODELS[name], **COMMON)


class Stage(nn.Module):
    """Blocks `of` of a model, with the embedding before the first and norm and head after the last. Its parameters are on `meta` until
    `materialize` makes them.

    Takes tokens, int64 [batch, length], in the first stage and hidden states [batch, length, width] in others; gives hidden states, in the
    last stage logits [batch, length, vocabulary]. Parameters have the same names in every split.
    """

    def __init__(self, config: PretrainedConfig, of: range):
        super().__init__()
        with torch.device("meta"):
            whole = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
        body: Any = whole.base_model
        self.config, self.tp = config, 1
        self.gpt = isinstance(config, GPT2Config)
        blocks = body.h if self.gpt else body.layers
        first, last = of.start == 0, of.stop == config.num_hidden_layers
        self.embedding = (body.wte if self.gpt else body.embed_tokens) if first else None
        self.positions = body.wpe if self.gpt and first else None
        self.blocks = nn.ModuleDict({str(i): blocks[i] for i in of})
        self.norm = (body.ln_f if self.gpt else body.norm) if last else None
        self.head = whole.lm_head if last else None
        self.rotary = None if self.gpt else type(body.rotary_emb)(config)
        for block in self.blocks.values():
            _linear(block)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(x.shape[1], device=x.device)[None]
        if self.embedding is not None:
            x = self.embedding(x)
        if self.positions is not None:
            x = x + self.positions(at)
        extra = {} if self.rotary is None else {"position_embeddings": self.rotary(x, at)}
        for block in self.blocks.values():
            x = block(x, attention_mask=None, **extra)
        if self.head is not None and self.norm is not None:
            x = self.head(self.norm(x))
        return x

    def parts(self) -> list[tuple[str, nn.Module]]:
        """(name, module) of what holds parameters: what is embedded, each block, norm and head."""
        ends = [(n, m) for n in ("embedding", "positions", "norm", "head") if (m := getattr(self, n)) is not None]
        return [*ends, *((f"blocks.{n}", b) for n, b in self.blocks.items())]


class Bias(nn.Module):
    """x + bias."""

    def __init__(self, width: int):
        super().__init__()
        self.bias = nn.Parameter(torch.empty(width, device="meta"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.bias


def _linear(block: nn.Module) -> None:
    """GPT-2's Conv1D is a Linear whose weight is transposed; tensor parallelism knows Linear. The bias after a product that it splits by rows
    is a module of its own: see `whole`."""
    for module in list(block.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Conv1D):
                width_in, width_out = child.weight.shape
                ends = name == "c_proj"
                made: nn.Module = nn.Linear(width_in, width_out, bias=not ends, device="meta")
                setattr(module, name, nn.Sequential(made, Bias(width_out)) if ends else made)


def materialize(module: nn.Module, name: str, config: PretrainedConfig, tp: int, device: torch.device, seed: int):
    """Make a part's parameters on `device`, the same for every mesh: each is drawn from a seed of its name. GPT-2's initialization: normal,
    0.02, and by the root of twice the layers smaller where a branch ends."""
    module.to_empty(device=device)
    small = 0.02 / math.sqrt(2 * config.num_hidden_layers)
    ends = {"c_proj", "o_proj", "down_proj"}
    with torch.no_grad():
        for key, p in module.named_parameters():
            *owner, kind = key.split(".")
            if p.ndim == 1:
                p.fill_(0.0 if kind == "bias" else 1.0)
                continue
            g = torch.Generator(device).manual_seed(seed + zlib.crc32(f"{name}.{key}".encode()))
            p.normal_(0.0, small if ends & set(owner) else 0.02, generator=g)
            if owner and owner[-1] == "c_attn":  # its rows are Q, K, V: each rank is to have its heads of all three
                p.copy_(p.view(3, tp, -1, p.shape[1]).transpose(0, 1).reshape(p.shape).clone())


def whole(block: nn.Module) -> list[nn.Module]:
    """Modules of a block whose parameters all ranks of tensor parallelism hold alike, in the order in which they run.

    FSDP2 sends a group of parameters as one buffer, and a compressor's groups and blocks run over its whole length. Were these in one buffer with
    parts of which each rank has its own, their errors would differ from rank to rank, and what should be replicas would drift apart.
    """
    if hasattr(block, "attn"):
        return [block.ln_1, block.attn.c_proj[1], block.ln_2, block.mlp.c_proj[1]]  # pyright: ignore
    return [block.input_layernorm, block.post_attention_layernorm]  # pyright: ignore


def split(block: nn.Module, mesh: DeviceMesh) -> None:
    """Tensor parallelism of one block over a one-dimensional mesh: one all-reduce for attention and one for the MLP, each way."""
    column, row, alike = ColwiseParallel, RowwiseParallel, Replicate()
    if hasattr(block, "attn"):
        plan: dict[str, Any] = {"attn.c_attn": column(), "mlp.c_fc": column()}
        plan |= {"attn.c_proj.0": row(), "mlp.c_proj.0": row()}
        block.attn.split_size //= mesh.size()  # pyright: ignore
    else:
        # Q, K and V take one input, whose gradients are added before they are reduced.
        inputs: Any = {"hidden_states": alike}
        plan = {
            "self_attn": PrepareModuleInput(input_kwarg_layouts=inputs, desired_input_kwarg_layouts=inputs),
            "mlp": PrepareModuleInput(input_layouts=(alike,), desired_input_layouts=(alike,)),
        }
        plan |= {f"self_attn.{n}_proj": column() for n in "qkv"} | {"self_attn.o_proj": row()}
        plan |= {f"mlp.{n}_proj": column() for n in ("gate", "up")} | {"mlp.down_proj": row()}
    parallelize_module(block, mesh, plan, src_data_rank=None)


def flops_a_token(config: PretrainedConfig, parameters: int, length: int) -> float:
    """Of forward and backward: 6 a parameter outside the embedding, and 12 x layers x width x length for attention."""
    outside = parameters - config.vocab_size * config.hidden_size
    return 6.0 * outside + 12.0 * config.num_hidden_layers * config.hidden_size * length
