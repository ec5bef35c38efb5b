"""The cases of transparent_cases.py that train: DDP, FSDP, ZeRO-1, pipelines, compiled graphs, checkpoints, threads beside them."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from transparent_cases import ALL, COUNT, DEVICE, case, close, everyones, mine, native, policy, ran, same, total

from coccl_dsl.torch import TransparentState, traffic, works


def mlp(width: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))


def batch(step: int, width: int = 16) -> torch.Tensor:
    g = torch.Generator().manual_seed(10 * step + dist.get_rank())
    return torch.randn(4, width, generator=g, device="cpu").to(DEVICE)


def steps(
    model: nn.Module, count: int = 2, accumulate: int = 1, loss: Callable[..., torch.Tensor] | None = None
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(count):
        for k in range(accumulate):
            last = k == accumulate - 1
            context = model.no_sync() if not last else torch.enable_grad()  # pyright: ignore
            with context:
                out = model(batch(step * accumulate + k))
                (loss(out) if loss else out.square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


def trained(make: Callable[[], nn.Module], run: Callable[[nn.Module], None] = steps) -> list[torch.Tensor]:
    model = make()
    run(model)
    found = []
    for p in model.parameters():
        full = getattr(p, "full_tensor", None)
        found.append((full() if full else p).detach().clone())
    return found


def alike(weights: list[torch.Tensor], what: str) -> None:
    """Every rank holds the same bits."""
    for i, w in enumerate(weights):
        others = [torch.empty_like(w, dtype=torch.float64) for _ in range(dist.get_world_size())]
        dist.all_gather(others, w.double())
        for other in others:
            same(other, w.double(), f"{what}: parameter {i} on all ranks")


Make = Callable[[], nn.Module]
Run = Callable[[nn.Module], None]


def training(variants: dict[str, Make | tuple[Make, Run]], rows: tuple[tuple[str, str], ...]) -> None:
    """Compressed training is near the exact one, and replicas stay equal. rows: role and op that each variant's report has."""
    both = {name: v if isinstance(v, tuple) else (v, steps) for name, v in variants.items()}
    exact = {name: trained(make, run) for name, (make, run) in both.items()}
    with policy(least=32):
        for name, (make, run) in both.items():
            traffic.reset()
            got = trained(make, run)
            alike(got, name)
            for role, op in rows:
                assert ran(op, role), f"{name}: no {role}.{op}"
            near = [float((g - r).norm() / r.norm()) for g, r in zip(got, exact[name], strict=True)]
            assert 0 < max(near) < 0.02, f"{name}: {near}"


@case("DDP: static_graph, no_sync, gradient_as_bucket_view, find_unused_parameters")
def ddp() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.other = mlp(), mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    group = dist.new_group(list(range(dist.get_world_size())), group_desc="mine")
    variants: dict[str, Make | tuple[Make, Run]] = {
        "several buckets": lambda: DistributedDataParallel(mlp(), bucket_cap_mb=0.004),
        "static_graph": lambda: DistributedDataParallel(mlp(), static_graph=True),
        "no_sync": (lambda: DistributedDataParallel(mlp()), lambda m: steps(m, accumulate=2)),
        "gradient_as_bucket_view": lambda: DistributedDataParallel(mlp(), gradient_as_bucket_view=True),
        "find_unused_parameters": lambda: DistributedDataParallel(Unused(), find_unused_parameters=True),
        "process_group": lambda: DistributedDataParallel(mlp(), process_group=group),
    }
    training(variants, (("dp", "all_reduce"),))
    dist.destroy_process_group(group)


@case("DDP with buffers")
def ddp_buffers() -> None:
    def make() -> nn.Module:
        return DistributedDataParallel(nn.Sequential(mlp(), nn.BatchNorm1d(16)))

    right = trained(make)
    with policy(ALL.replace('["*", "*.broadcast"]', '"dp"'), least=32):
        got = trained(make)
        assert ran("broadcast") == 0
    assert max(float((g - r).norm() / (r.norm() + 1)) for g, r in zip(got, right, strict=True)) < 0.02


@case("a compressor with a state, by name, in DDP and FSDP2")
def stateful() -> None:
    text = """
    arena_mib = 4
    [[rule]]
    on = "dp.all_reduce"
    compressor = "error_feedback(int4)"
    [[rule]]
    on = "fsdp.reduce_scatter"
    compressor = "error_feedback(int4)"
    min_bytes = 0
    [[rule]]
    on = "fsdp.all_gather"
    compressor = "weight_delta8"
    min_bytes = 0
    """
    from torch.distributed.fsdp import fully_shard

    def sharded() -> nn.Module:
        model = nn.Sequential(mlp(), mlp(), nn.Identity())
        for part in model[:2]:
            fully_shard(part)
        return fully_shard(model)

    def replicated() -> nn.Module:
        return DistributedDataParallel(mlp())

    def hooked(register: Callable[[DistributedDataParallel], None]) -> Callable[[], nn.Module]:
        def made() -> nn.Module:
            model = DistributedDataParallel(mlp())
            register(model)
            return model

        return made

    half = hooked(lambda m: m.register_comm_hook(None, default_hooks.fp16_compress_hook))
    built_in = hooked(lambda m: m._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE))
    own = hooked(lambda m: m.register_comm_hook(None, exact_hook))
    with policy(text):
        trained(own)
        assert not ran("all_reduce") and native("all_reduce", "keeps a state"), "a hook of the user's is left alone"
        model = half()
        try:
            model.register_comm_hook(None, default_hooks.allreduce_hook)
            raise AssertionError("a second hook was taken")
        except RuntimeError as e:
            assert "once" in str(e), e
    before = own()
    with policy(text):
        steps(before)
        assert not ran("all_reduce"), "so is one from before"
    replicas = (replicated, half, built_in)
    for make, op in (*((make, "all_reduce") for make in replicas), (sharded, "reduce_scatter")):
        right = trained(make)
        with policy(text):
            got = trained(make)
            alike(got, op)
            assert ran(op), op
            x = torch.ones(COUNT)
            dist.all_reduce(x)  # nobody names its parameters
            same(x, torch.full((COUNT,), float(dist.get_world_size())), "all_reduce of no parameters")
            if op == "reduce_scatter":
                held = [m for m in traffic.report().memory if m.what.startswith("states")]
                assert held and held[0].bytes > 0
        assert max(float((g - r).norm() / r.norm()) for g, r in zip(got, right, strict=True)) < 0.1

    def gradients(model: nn.Module) -> list[torch.Tensor]:
        model(batch(7)).square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    for make in (replicated, sharded):
        with policy(text):
            model = make()
            steps(model)
            weights = {k: v.clone() for k, v in model.state_dict().items()}
            kept = TransparentState().state_dict()
            went_on = gradients(model)
        for loads in (True, False):
            with policy(text):  # numbers of FSDP2's groups and DDP's hooks begin anew
                model = make()
                gradients(model)  # DDP's buckets are then final
                model.zero_grad()
                model.load_state_dict(weights)
                if loads:
                    TransparentState().load_state_dict(kept)
                again = gradients(model)
            alike_bits = all(torch.equal(_local(a), _local(b)) for a, b in zip(went_on, again, strict=True))
            assert alike_bits == loads, f"{make.__name__}: states loaded: {loads}, same bits: {alike_bits}"


def exact_hook(state, bucket):  # torch reads annotations, which are text here
    return default_hooks.allreduce_hook(dist.group.WORLD, bucket)


def _local(t: torch.Tensor) -> torch.Tensor:
    return t.to_local() if hasattr(t, "to_local") else t  # pyright: ignore


@case("FSDP1")
def fsdp1() -> None:
    from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")

        def weights() -> dict[str, torch.Tensor]:
            model = FullyShardedDataParallel(mlp(), device_id=torch.device(DEVICE))
            steps(model)
            config = FullStateDictConfig(rank0_only=False)
            with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
                return {k: v.clone() for k, v in model.state_dict().items()}

        right = weights()
        with policy(least=32):
            got = weights()
            assert ran("reduce_scatter", "fsdp") and ran("all_gather", "fsdp")
            assert native("all_gather", "FSDP1 state_dict")
            alike(list(got.values()), "FSDP1")
    assert max(float((got[k] - right[k]).norm() / right[k].norm()) for k in right) < 0.02


@case("FSDP2: mixed precision, HSDP, force_sum, divide factors")
def fsdp2() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    def make(prepare: Callable[[nn.Module], object] | None = None, **options: object) -> Callable[[], nn.Module]:
        def made() -> nn.Module:
            model = nn.Sequential(mlp(), mlp(), nn.Identity())
            for part in model[:2]:
                fully_shard(part, **options)
            fully_shard(model, **options)
            for part in model.modules():
                if prepare and hasattr(part, "set_requires_all_reduce"):
                    prepare(part)
            return model

        return made

    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    variants: dict[str, Make | tuple[Make, Run]] = {
        "float32": make(),
        "bf16 weights, f32 gradients": make(mp_policy=bf16),
        "force_sum": make(lambda m: m.set_force_sum_reduction_for_comms(True)),
    }
    rows = (("fsdp", "all_gather"), ("fsdp", "reduce_scatter"))
    training(variants, rows)
    if dist.get_world_size() == 4:
        grid = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
        training({"HSDP": make(mesh=grid)}, (*rows, ("dp", "all_reduce")))
    # gloo has no PREMUL_SUM; compressed calls have.
    with policy(least=32):
        got = trained(make(lambda m: m.set_gradient_divide_factor(2.0 * dist.get_world_size())))
        alike(got, "divide factor")
        assert ran("reduce_scatter", "fsdp") and not native("reduce_scatter", "PREMUL")
    right = trained(make(lambda m: None), lambda m: halved(m))
    assert max(float((g - r).norm() / r.norm()) for g, r in zip(got, right, strict=True)) < 0.02


def halved(model: nn.Module) -> None:
    """As with a divide factor of twice the ranks: gradients are half of the average."""
    steps(model, loss=lambda out: out.square().mean() / 2)


@case("ZeRO-1")
def zero1() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def run(model: nn.Module) -> None:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.05)
        for step in range(3):
            model(batch(step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    right = trained(lambda: DistributedDataParallel(mlp()), run)
    with policy(ALL.replace('["*", "*.broadcast"]', '"dp.all_reduce"'), least=32):
        got = trained(lambda: DistributedDataParallel(mlp()), run)
        alike(got, "ZeRO-1")
        assert ran("all_reduce", "dp")
    assert 0 < max(float((g - r).norm() / r.norm()) for g, r in zip(got, right, strict=True)) < 0.02


@case("pipelining: 1F1B and interleaved")
def pipelining() -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

    rank, n = mine()

    def run(interleaved: bool) -> list[torch.Tensor]:
        count = 2 * n if interleaved else n
        torch.manual_seed(0)
        parts = [nn.Linear(16, 16) for _ in range(count)]
        own = [i for i in range(count) if i % n == rank]
        stages = [PipelineStage(parts[i], i, count, torch.device(DEVICE)) for i in own]

        def loss(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return (out - target).square().mean()

        schedule = (
            ScheduleInterleaved1F1B(stages, 4, loss_fn=loss)
            if interleaved
            else Schedule1F1B(stages[0], 4, loss_fn=loss)
        )
        g = torch.Generator().manual_seed(1)
        for _ in range(2):
            x, y = (torch.randn(8, 16, generator=g, device="cpu").to(DEVICE) for _ in range(2))
            if rank == 0:
                schedule.step(x)
            elif rank == n - 1:
                schedule.step(target=y)
            else:
                schedule.step()
        return [p.grad.clone() for i in own for p in parts[i].parameters() if p.grad is not None]

    for interleaved in (False, True):
        right = run(interleaved)
        with policy():
            got = run(interleaved)
            assert ran("send", "pp") and ran("recv", "pp")
        assert max(float((g - r).norm() / r.norm()) for g, r in zip(got, right, strict=True)) < 0.05
    text = ALL.replace('["*", "*.broadcast"]', '"pp.send.backward"')
    with policy(text):
        run(False)
        # The first stage sends nothing backward, the last receives nothing so.
        assert bool(ran("send", "pp")) == (rank > 0) and bool(ran("recv", "pp")) == (rank < n - 1)


@case("torch.distributed.checkpoint: save, load, async_save")
def checkpoints() -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    rank, _ = mine()
    paths: list[object] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(paths, 0)
    model = fully_shard(mlp())
    steps(model, 1)
    with policy():
        dcp.save({"model": model.state_dict()}, checkpoint_id=f"{paths[0]}/sync")
        other = fully_shard(mlp())
        state = {"model": other.state_dict()}
        dcp.load(state, checkpoint_id=f"{paths[0]}/sync")
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            same(a.to_local(), b.to_local(), "a loaded shard")
        full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        if rank == 0:
            assert len(full) == 4
        assert not traffic.report().compressed, traffic.report()
        gloo = dist.new_group(backend="gloo", group_desc="checkpoints")
        saving = dcp.async_save({"model": model.state_dict()}, checkpoint_id=f"{paths[0]}/async", process_group=gloo)
        steps(model, 2)
        saving.result()  # pyright: ignore
        assert ran("reduce_scatter", "fsdp")
    dist.barrier()


@case("torch.compile(fullgraph=True)")
def compiled() -> None:
    import torch.distributed._functional_collectives as fc

    rank, n = mine()
    xs = everyones(COUNT)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = fc.all_reduce(x * 2, "sum", dist.group.WORLD)
        return y + 1

    backends = ("aot_eager", "inductor") if os.environ.get("COCCL_TEST_FULL") else ("aot_eager",)
    for backend in backends:
        torch._dynamo.reset()
        close(torch.compile(f, fullgraph=True, backend=backend)(xs[rank]), 2 * total(xs) + 1, backend)
    torch._dynamo.reset()
    assert ran("all_reduce") == len(backends)
    if len(backends) > 1:
        before = ran("all_reduce")  # of the same group, which may be `dp` already
        model = torch.compile(DistributedDataParallel(mlp()), backend="aot_eager")
        steps(model, 2)
        alike([p.detach() for p in model.parameters()], "compiled DDP")
        assert ran("all_reduce") - before == 2 and ran("all_reduce", "dp") >= 2, traffic.report()


@case("threads: DDP and a pipeline beside object collectives and async checkpoints", ranks=4)
def threads() -> None:
    """COCCL_TEST_STEPS: how long."""
    import threading

    import torch.distributed.checkpoint as dcp
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, n = mine()
    count = int(os.environ.get("COCCL_TEST_STEPS", "12"))
    paths: list[object] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(paths, 0)
    objects, saves = dist.new_group(group_desc="objects"), dist.new_group(group_desc="saves")
    grid = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("pp", "dp"))
    failed: list[BaseException] = []

    def talk() -> None:
        try:
            for k in range(2 * count):
                told: list[object] = [None] * n
                dist.all_gather_object(told, (k, rank), group=objects)
                assert told == [(k, r) for r in range(n)]
        except BaseException as e:
            failed.append(e)

    with policy(least=64):
        index = grid["pp"].get_local_rank()
        torch.manual_seed(0)
        parts = [mlp(), mlp()]
        model = DistributedDataParallel(parts[index], process_group=grid["dp"].get_group())
        stage = PipelineStage(model, index, 2, torch.device(DEVICE), group=grid["pp"].get_group())
        schedule = Schedule1F1B(stage, 4, loss_fn=lambda out, target: (out - target).square().mean())
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        thread = threading.Thread(target=talk)
        thread.start()
        saving = None
        for step in range(count):
            x, y = batch(step).repeat(2, 1), batch(step + 1).repeat(2, 1)
            schedule.step(x) if index == 0 else schedule.step(target=y)
            optimizer.step()
            optimizer.zero_grad()
            if step % 10 == 0:
                if saving is not None:
                    saving.result()
                where = f"{paths[0]}/{step}"
                saving = dcp.async_save({f"part{index}": model.state_dict()}, checkpoint_id=where, process_group=saves)
        thread.join()
        assert saving is not None
        saving.result()
        assert not failed, failed
        assert len(works.alive) == 0, "a Work was left"
        assert ran("send", "pp") or ran("recv", "pp")
        assert ran("all_reduce", "dp")
        mates = grid["dp"].get_group()
        held = [None, None]
        dist.all_gather_object(held, [p.detach().numpy().tobytes() for p in model.parameters()], group=mates)
        assert held[0] == held[1], "replicas differ"
    for group in (objects, saves):
        dist.destroy_process_group(group)
