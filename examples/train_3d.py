"""Train GPT or Qwen2.5 models with data, tensor and pipeline parallelism, each dimension's collectives compressed as a policy says.

    torchrun --nproc_per_node=8 examples/train_3d.py --model gpt-tiny --mesh 2x2x2 --steps 30 --policy policies/3d.toml

The mesh is data x tensor x pipeline. All that is coccl_dsl here: `enable(policy)`, `step()`, its states in the checkpoint, its report. Without
`--policy`, or with `--no-compression`, nothing of it runs. `--no-communication` replaces every collective by one that does nothing: what a
step then takes less is what its communication costs it; its losses mean nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).resolve().parent))

from three_d.models import MODELS, Stage, config_of, flops_a_token  # noqa: E402
from three_d.parallel import DTYPES, Steps, build, by_mesh, clip, replicas_differ  # noqa: E402
from three_d.saving import Checkpoint  # noqa: E402
from three_d.text import Text  # noqa: E402
from three_d.told import Told, bytes_a_dimension, table_of, why_native  # noqa: E402

import coccl_dsl  # noqa: E402
from coccl_dsl.diagnostics import CompileError  # noqa: E402


@dataclass
class Options:
    """Sizes are global: batch is sequences a step over the whole mesh."""

    model: str = "gpt-tiny"
    mesh: tuple[int, int, int] = (1, 1, 1)
    data: str = "fsdp"
    policy: Path | None = None
    no_compression: bool = False
    no_communication: bool = False
    steps: int = 100
    batch: int = 16
    length: int = 128
    microbatches: int = 0
    lr: float = 3e-4
    warmup: int = 10
    decay: float = 0.1
    clip: float = 1.0
    dtype: str = "bf16"
    weights: str = "f32"
    optimizer: str = "adamw"
    reduce: str = "f32"
    bucket_mb: int = 25
    seed: int = 0
    log_every: int = 10
    validate_every: int = 0
    validation_batches: int = 4
    checkpoint: Path | None = None
    checkpoint_every: int = 0
    resume: Path | None = None
    stop_after: int = 0
    json: Path | None = None
    check_replicas: bool = False


HELP = {
    "model": f"one of {', '.join(MODELS)}",
    "mesh": "data x tensor x pipeline ranks, as 2x2x2",
    "data": "fsdp (FSDP2) or ddp; ddp is for meshes without tensor parallelism",
    "policy": "what to compress, and how: a file like policies/3d.toml",
    "no_compression": "leave the policy out",
    "no_communication": "collectives do nothing: for the time of a step without them",
    "batch": "sequences a step, of all ranks together",
    "length": "tokens a sequence",
    "microbatches": "microbatches a step in a pipeline; 0 is twice its stages",
    "lr": "highest learning rate, after the warmup; then a cosine down to a tenth",
    "warmup": "steps in which the learning rate rises",
    "decay": "the optimizer's weight decay, of matrices",
    "clip": "largest norm of the gradient",
    "dtype": "of the computation: bf16 or f32",
    "weights": "dtype of what the optimizer changes, and of its states: f32, or bf16 to save memory (--data fsdp)",
    "optimizer": "adamw, or sgd, which keeps no states",
    "reduce": "of gradients on their way: f32 or bf16",
    "bucket_mb": "DDP's buckets, MiB",
    "log_every": "steps between lines; each waits for the device",
    "validate_every": "steps between validations; 0 is at the end only",
    "checkpoint": "folder for checkpoints",
    "checkpoint_every": "steps between checkpoints; 0 is at the end only",
    "resume": "a checkpoint to go on from, FOLDER/step_N",
    "stop_after": "stop at this step of the schedule of --steps; 0 is at its end",
    "json": "file to append the run's JSON lines to",
    "check_replicas": "at the end, compare weights between ranks bit for bit",
}


def parse(arguments: Sequence[str] | None = None) -> Options:
    words = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(
        description=words[0], epilog=words[1], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choices: dict[str, list[str]] = {"model": list(MODELS), "data": ["fsdp", "ddp"], "optimizer": ["adamw", "sgd"]}
    choices |= dict.fromkeys(("dtype", "weights", "reduce"), list(DTYPES))
    for f in fields(Options):
        name, text = "--" + f.name.replace("_", "-"), HELP.get(f.name)
        if f.default is False:
            parser.add_argument(name, action="store_true", help=text)
        else:
            kind = {"mesh": _mesh, "policy": Path, "checkpoint": Path, "resume": Path, "json": Path}.get(
                f.name, type(f.default)
            )
            parser.add_argument(name, type=kind, default=f.default, choices=choices.get(f.name), help=text)
    return Options(**vars(parser.parse_args(arguments)))


def _mesh(text: str) -> tuple[int, int, int]:
    sizes = text.split("x")
    if len(sizes) != 3 or not all(s.isdigit() and int(s) for s in sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is not DATAxTENSORxPIPELINE, as in 2x2x2")
    return int(sizes[0]), int(sizes[1]), int(sizes[2])


def validate(o: Options, world: int) -> None:
    """Raises ValueError for what does not fit together."""
    dp, tp, pp = o.mesh
    config = config_of(o.model)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    wrong = [
        (dp * tp * pp != world, f"--mesh {dp}x{tp}x{pp} is of {dp * tp * pp} ranks, and there are {world}"),
        (
            o.data == "ddp" and o.reduce == "bf16" and not torch.cuda.is_available(),
            "torch's DDP reduces bfloat16 on GPUs alone: say --reduce f32, or --data fsdp",
        ),
        (
            o.data == "ddp" and o.weights == "bf16",
            "--data ddp reduces in the weights' dtype: say --weights f32, or --data fsdp",
        ),
        (o.data == "ddp" and tp > 1, "--data ddp has no tensor parallelism: say --data fsdp"),
        (heads % tp != 0, f"{o.model} has {heads} heads of keys, which {tp} tensor-parallel ranks cannot share"),
        (config.num_hidden_layers < pp, f"{o.model} has {config.num_hidden_layers} layers for {pp} pipeline stages"),
        (
            o.batch % (dp * microbatches(o)) != 0,
            f"--batch {o.batch} is not a multiple of {dp} x {microbatches(o)} microbatches",
        ),
        (o.length > config.max_position_embeddings, f"{o.model} takes {config.max_position_embeddings} tokens at most"),
        (
            o.no_communication and bool(o.checkpoint or o.resume or o.check_replicas or o.validate_every),
            "--no-communication trains nothing: it goes with neither --checkpoint, --resume, --check-replicas nor --validate-every",
        ),
        (o.steps < 1, "--steps is at least 1"),
    ]
    for bad, why in wrong:
        if bad:
            raise ValueError(why)


def microbatches(o: Options) -> int:
    return (o.microbatches or 2 * o.mesh[2]) if o.mesh[2] > 1 else 1


def rate(o: Options, step: int) -> float:
    """Learning rate of a step, from 0 on."""
    if step < o.warmup:
        return o.lr * (step + 1) / o.warmup
    along = (step - o.warmup) / max(1, o.steps - o.warmup)
    return o.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * along)))


class Run:
    """A model on a mesh, and its training. torch.distributed is initialized."""

    def __init__(self, o: Options, device: torch.device, text: Text | None = None):
        validate(o, dist.get_world_size())
        self.o, self.device, self.text = o, device, text or Text()
        dp, tp, pp = o.mesh
        self.mesh = init_device_mesh(device.type, (pp, dp, tp), mesh_dim_names=("pp", "dp", "tp"))
        self.part = (self.mesh["dp"].get_local_rank(), dp)
        config = config_of(o.model)
        self.model = build(config, self.mesh, device, o.data, o.dtype, o.weights, o.reduce, o.bucket_mb, o.seed)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        micro = (o.batch // dp // microbatches(o), o.length)
        autocast = o.data == "ddp" and o.dtype != "f32"
        self.steps = Steps(self.model, config, self.mesh, device, microbatches(o), micro, DTYPES[o.dtype], autocast)
        groups = [
            {"params": [p for p in one if (p.ndim > 1) == matrix], "weight_decay": o.decay if matrix else 0.0}
            for one in by_mesh(self.parameters)
            for matrix in (True, False)
        ]
        groups = [g for g in groups if g["params"]]
        self.optimizer: torch.optim.Optimizer
        if o.optimizer == "sgd":
            # One tensor after the other, or weight decay would want a copy of all gradients. DTensor has no fused SGD.
            self.optimizer = torch.optim.SGD(groups, lr=o.lr, foreach=False)
        else:
            fused = device.type == "cuda" or None
            self.optimizer = torch.optim.AdamW(groups, lr=o.lr, betas=(0.9, 0.95), fused=fused)
        self.checkpoint = Checkpoint(self.model, self.optimizer)
        whole = Stage(config, range(config.num_hidden_layers))
        self.flops = flops_a_token(config, sum(p.numel() for p in whole.parameters()), o.length)

    def batch(self, step: int, validation: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        o = self.o
        tokens, targets = self.text.batch(1_000_003 * o.seed + step, o.batch, o.length, self.part, validation)
        return tokens.to(self.device), targets.to(self.device)

    def everyones(self, loss: torch.Tensor | None) -> float:
        """The mean over data-parallel ranks of what the last stage found, on all ranks."""
        dp, tp, _ = self.o.mesh
        total = torch.zeros((), dtype=torch.float64, device=self.device)  # no policy compresses float64
        if loss is not None:
            total += loss.double() / (dp * tp)
        dist.all_reduce(total)
        return float(total)

    def train_step(self, step: int) -> tuple[torch.Tensor | None, torch.Tensor]:
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.o, step)
        loss = self.steps.train(*self.batch(step))
        norm = clip(self.parameters, self.o.clip, self.mesh, self.o.data == "ddp")
        self.optimizer.step()
        self.optimizer.zero_grad()
        coccl_dsl.step()
        return loss, norm

    def validation(self) -> float:
        losses = [self.everyones(self.steps.evaluate(*self.batch(i, True))) for i in range(self.o.validation_batches)]
        return statistics.fmean(losses)

    def resume(self, path: Path) -> int:
        """Go on from a checkpoint. DDP makes its final buckets, and compressors their states, in the first backward, so one comes before."""
        self.steps.train(*self.batch(0))
        self.optimizer.zero_grad()
        return self.checkpoint.load(path)

    def digest(self) -> str:
        """Of all ranks' weights, bit for bit."""
        held = hashlib.sha256()
        for p in self.parameters:
            local = (p.to_local() if isinstance(p, DTensor) else p).detach().cpu().contiguous()
            held.update(local.view(torch.uint8).numpy().tobytes())
        everyones: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(everyones, held.hexdigest())
        return hashlib.sha256("".join(everyones).encode()).hexdigest()

    def train(self) -> dict[str, object]:
        """The whole run; what it returns is the last line of the log."""
        o = self.o
        start = self.resume(o.resume) if o.resume else 0
        end = min(o.steps, o.stop_after or o.steps)
        seconds: list[float] = []
        with Told(o.json, end) as told:
            options = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(o).items()}
            told.note("run", **options, world=dist.get_world_size(), torch=torch.__version__)
            began, last = self.now(), start  # validation and checkpoints move `began` on
            for step in range(start, end):
                loss, norm = self.train_step(step)
                done = step + 1
                if done % o.log_every == 0 or done == end:
                    mean = self.everyones(loss)
                    now = self.now()
                    seconds.append((now - began) / (done - last))
                    began, last = now, done
                    told.step(done, loss=mean, norm=float(norm), **self.speed(seconds[-1]))
                paused = self.now() if self.validates(done, end) or self.saves(done, end) else 0.0
                if self.validates(done, end):
                    told.note("validation", step=done, loss=self.validation())
                if o.checkpoint and self.saves(done, end):
                    self.checkpoint.save(o.checkpoint, done)
                if paused:
                    began += self.now() - paused
            final: dict[str, object] = {"step": end}
            if seconds:  # the first line has what starts once
                final |= self.speed(statistics.median(seconds[1:] or seconds))
            if o.no_communication:
                told.note("end", **final)
                return final
            final |= {"validation_loss": self.validation(), "bytes": bytes_a_dimension(), "weights": self.digest()}
            final["native"] = why_native()
            if o.check_replicas:
                final["replicas_differ"] = self.replicas()
            told.note("end", **final)
            told.line(f"validation loss {final['validation_loss']:.4f}")
            if final["bytes"]:
                told.bar.console.print(table_of(final["bytes"]))  # pyright: ignore
            elif o.policy is not None and not o.no_compression:
                told.line(f"nothing was compressed: {'; '.join(final['native']) or 'no rule fits a call'}")  # pyright: ignore
        return final

    def validates(self, done: int, end: int) -> bool:
        return self.o.validate_every > 0 and done % self.o.validate_every == 0 and done < end

    def saves(self, done: int, end: int) -> bool:
        every = self.o.checkpoint_every
        return self.o.checkpoint is not None and (done == end or (every > 0 and done % every == 0))

    def replicas(self) -> list[str]:
        """Parameters that some ranks do not hold alike, of all ranks."""
        found: list[list[str]] = [[]] * dist.get_world_size()
        dist.all_gather_object(found, replicas_differ(self.model, self.mesh))
        return sorted({name for names in found for name in names})

    def speed(self, seconds: float) -> dict[str, float]:
        tokens = self.o.batch * self.o.length / seconds
        teraflops = tokens * self.flops / dist.get_world_size() / 1e12
        return {"step_seconds": seconds, "tokens_per_second": tokens, "teraflops_per_rank": teraflops}

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


# A run without torchrun is of one rank.
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def share_gpus() -> None:
    """Where one machine has fewer GPUs than ranks, they share them. NCCL refuses two ranks of one host on a GPU, but not two hosts: each rank is one,
    and NCCL goes over the loopback's sockets. Good for losses and bytes, not for times."""
    ranks, gpus = int(os.environ["WORLD_SIZE"]), torch.cuda.device_count()
    if ranks == int(os.environ.get("LOCAL_WORLD_SIZE", ranks)) > gpus:
        own = {"NCCL_HOSTID": f"rank{os.environ['RANK']}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
        os.environ.update({name: value for name, value in own.items() if name not in os.environ})
        if os.environ["RANK"] == "0":
            print(f"train_3d.py: {ranks} ranks share {gpus} GPU(s): times mean little", file=sys.stderr)


def start(o: Options) -> torch.device:
    """Join the world: NCCL on GPUs, gloo without, or a group that does nothing. Raises ValueError for a policy that is not in force."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        share_gpus()
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if o.no_communication:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group(
            "fake", store=FakeStore(), rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
        )
        return device
    if o.policy is not None and not o.no_compression and not coccl_dsl.enable(o.policy):
        raise ValueError(f"{o.policy} has no rules, or is not for this torch: say --no-compression")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


def main(arguments: Sequence[str] | None = None) -> int:
    o = parse(arguments)
    if "RANK" not in os.environ:
        os.environ.update(ALONE)
    try:
        validate(o, int(os.environ["WORLD_SIZE"]))
        device = start(o)
    except (ValueError, CompileError) as e:
        print(f"train_3d.py: {e}", file=sys.stderr)
        return 2
    Run(o, device).train()
    dist.destroy_process_group()
    coccl_dsl.disable()
    return 0


if __name__ == "__main__":
    sys.exit(main())
