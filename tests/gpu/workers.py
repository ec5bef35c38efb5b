"""What the GPU tests run in each process. `python -m workers NAME` is started once a rank by `launch`; a wrong bit is an AssertionError."""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import coccl_dsl
from coccl_dsl import simulate
from coccl_dsl.pipeline import load
from coccl_dsl.runtime.errors import BindError
from coccl_dsl.runtime.simulate import SimState

ALGORITHMS = (
    "ring",
    "two_shot",
    "one_shot",
    "halving_doubling",
    "reduce_scatter_direct",
    "all_gather_direct",
    "all_to_all_direct",
    "tree_broadcast",
    "three_shot",
    "sdp4bit",
    "all_gather_mesh",
)
COMPRESSORS = ("int8", "int4", "raw")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
IN_ONE = ("one_shot", "two_shot", "all_gather_direct", "reduce_scatter_direct", "all_to_all_direct")
LONE_RANK = {"COCCL_TEST_LONE_RANK": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def launch(name: str, world: int, *arguments: str, timeout: float = 300, hosts: bool = False) -> str:
    """Run worker `name` (or a script of this folder) on `world` processes, several a GPU where there are fewer GPUs; returns rank 0's output.
    hosts: each rank is a host of its own to NCCL, which then goes over sockets and lets ranks share a GPU.
    Raises AssertionError with the output of a rank that failed."""
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    processes = []
    for rank in range(world):
        full = (
            os.environ
            | {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            | ({"TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"} if world > torch.cuda.device_count() else {})
            | (LONE_RANK | {"NCCL_HOSTID": f"host{rank}"} if hosts else {})
        )
        script = Path(__file__).parent / name if name.endswith(".py") else Path(__file__)
        command = [sys.executable, str(script), *([] if name.endswith(".py") else [name]), *arguments]
        processes.append(
            subprocess.Popen(command, env=full, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    end = time.monotonic() + timeout
    outputs: list[str] = []
    for p in processes:
        try:
            out, _ = p.communicate(timeout=max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            for q in processes:
                q.kill()
            out = (p.communicate()[0] or "") + "\nTIMED OUT"
        outputs.append(out)
    bad = [r for r, p in enumerate(processes) if p.returncode]
    assert not bad, f"ranks {bad} failed:\n" + "\n".join(outputs[r][-4000:] for r in bad[:2])
    return outputs[0]


def start(seconds: float = 120) -> torch.device:
    """Join the group: NCCL, or gloo where ranks of one host share a GPU, which NCCL refuses."""
    rank = int(os.environ["RANK"])
    shared = int(os.environ["WORLD_SIZE"]) > torch.cuda.device_count() and not LONE_RANK.items() <= os.environ.items()
    backend = "gloo" if shared else "nccl"
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group(
        backend, timeout=timedelta(seconds=seconds), **({"device_id": device} if backend == "nccl" else {})
    )
    return device


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.reshape(-1).view(torch.int32 if t.element_size() == 4 else torch.int16)


def inputs(n: int, count: int, dtype: torch.dtype, seed: int, device: torch.device) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(count, generator=g).to(dtype).to(device) for _ in range(n)]


def one_launch(transport: str, depth: int = 1) -> tuple[bool, ...]:
    """Calls of several launches, and of one where they may be."""
    return (False, True) if transport == "symm" and depth == 1 else (False,)


def mesh_for(c: coccl_dsl.Collective, n: int) -> dict[str, int] | None:
    if not c.axes:
        return None
    return {c.axes[0]: 2, c.axes[1]: n // 2}


def counts_for(kind: str, n: int, group: int = 128) -> list[int]:
    found = [0, 1, group - 1, group + 1, n - 1, n * group + 1, 100003]
    return [c * n for c in found] if kind in ("reduce_scatter", "all_to_all") else found


def equality(
    transports: list[str], algorithms: list[str], compressors: list[str], dtypes: list[torch.dtype], depths: list[int]
) -> None:
    """Every case over every transport equals simulate, bit for bit, for all counts; in place where torch has it."""
    device = start()
    rank, n = dist.get_rank(), dist.get_world_size()
    cases = 0
    began = time.perf_counter()
    for name in algorithms:
        c = load(name)
        mesh = mesh_for(c, n)
        if c.axes and n % 2:
            continue
        counts = counts_for(c.kind, n)
        for compressor in compressors:
            names = dict.fromkeys(c.program().codecs, compressor)
            for dtype in dtypes:
                expected = {}
                for i, count in enumerate(counts):
                    xs = inputs(n, count, dtype, i, device)
                    expected[count] = xs[rank], simulate(c, xs, mesh=mesh, **names)[rank]
                like = torch.empty(max(counts), dtype=dtype, device=device)
                for transport in transports:
                    for depth, one in [(d, o) for d in depths for o in one_launch(transport, d)]:
                        try:
                            op = c.bind(like=like, mesh=mesh, transport=transport, depth=depth, one_launch=one, **names)
                        except BindError as e:
                            assert one and "one_launch=True is not available" in str(e) and name not in IN_ONE, e
                            continue
                        assert not one or "calls are one launch each" in op.explain()
                        for count, (x, want) in expected.items():
                            got = op(x)
                            assert torch.equal(bits(got), bits(want)), (
                                name,
                                compressor,
                                dtype,
                                transport,
                                depth,
                                one,
                                count,
                                int((bits(got) != bits(want)).sum()),
                            )
                            cases += 1
                            if c.kind in ("all_reduce", "broadcast") and count:
                                y = x.clone()
                                op(y, out=y)
                                assert torch.equal(bits(y), bits(want)), (
                                    "in place",
                                    name,
                                    compressor,
                                    dtype,
                                    transport,
                                    depth,
                                    one,
                                    count,
                                )
                                cases += 1
    if rank == 0:
        print(
            f"{cases} cases equal simulate bit for bit, {time.perf_counter() - began:.1f} s, transports {transports}, n = {n}"
        )


def mixed() -> None:
    """Two hosts of two ranks, by NCCL_HOSTID: mapped memory inside, torch's backend between."""
    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ["NCCL_HOSTID"] = f"node{rank // 2}"
    device = start()
    for name in ("three_shot", "two_level", "sdp4bit", "all_gather_mesh", "reduce_scatter_mesh", "all_to_all_mesh"):
        c = load(name)
        counts = counts_for(c.kind, n)
        for depth in (1, 2):
            op = c.bind(
                like=torch.empty(max(counts), dtype=torch.bfloat16, device=device),
                mesh=mesh_for(c, n),
                depth=depth,
                transport="symm+torch",
            )
            assert "symm (mapped memory of 2 ranks" in op.explain() and "other peers over torch" in op.explain()
            for i, count in enumerate(counts):
                xs = inputs(n, count, torch.bfloat16, i, device)
                assert torch.equal(bits(op(xs[rank])), bits(simulate(c, xs, mesh=mesh_for(c, n))[rank])), (name, count)
    chosen = load("three_shot").bind(like=torch.empty(99, device=device), mesh={"node": 2, "local": n // 2})
    assert "symm (mapped memory of 2 ranks" in chosen.explain(), "auto, over a mesh"
    flat = load("two_shot").bind(like=torch.empty(99, device=device))
    assert "not symm: the ranks are on 2 hosts" in flat.explain()
    if rank == 0:
        print("symm inside a host, torch between: all right")


def stateful() -> None:
    """Error feedback, weight differences and stochastic rounding over several calls."""
    device = start()
    rank, n = dist.get_rank(), dist.get_world_size()
    cases = 0
    for name in ("two_shot", "all_gather_direct", "reduce_scatter_direct"):
        c = load(name)
        for compressor in ("error_feedback(int4)", "int4(round=stochastic)", "weight_delta4"):
            names = dict.fromkeys(c.program().codecs, compressor)
            count = 70000 * n
            for transport in ("symm", "torch"):
                op = c.bind(like=torch.empty(count, device=device, dtype=torch.bfloat16), transport=transport, **names)
                state = SimState()
                for call in range(4):
                    xs = inputs(n, count, torch.bfloat16, call, device)
                    want = simulate(c, xs, state=state, **names)[rank]
                    got = op(xs[rank])
                    assert torch.equal(bits(got), bits(want)), (name, compressor, transport, call)
                    cases += 1
    if rank == 0:
        print(f"{cases} stateful calls equal simulate")


def lifetimes() -> None:
    """1,000 async calls on temporaries whose memory is reused at once; 1,000 counts on one arena; bind times; a captured graph replayed."""
    device = start()
    rank, n = dist.get_rank(), dist.get_world_size()
    c = load("two_shot")
    xs = [inputs(n, 30000, torch.bfloat16, s, device) for s in range(5)]
    want = [simulate(c, x)[rank] for x in xs]
    ops = [c.bind(like=xs[0][rank], transport="symm", one_launch=one) for one in (False, True)]
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for call in range(2000):
        op = ops[call // 1000]
        work = op(xs[call % 5][rank].clone(), async_op=True)
        trash = torch.full((30000,), float("nan"), dtype=torch.bfloat16, device=device)
        del trash
        got = work.wait()
        wrong += (bits(got) != bits(want[call % 5])).any()
        del work, got
    assert int(wrong) == 0, f"{int(wrong)} wrong async results"

    op = c.bind(like=torch.empty(1 << 20, dtype=torch.bfloat16, device=device), transport="symm")
    arena = op._executor.arena.numel()
    for i in range(1000):
        op(torch.ones(1 + 1047 * i, dtype=torch.bfloat16, device=device))
    torch.cuda.synchronize()
    assert op._executor.arena.numel() == arena <= 3 * (1 << 20) * 65 // 64

    from coccl_dsl.codegen import triton_backend

    before = triton_backend.compilations
    static = [x.clone() for x in xs[0]][rank]
    out = torch.empty_like(static)
    for one in (False, True):
        op = c.bind(like=static, transport="symm", q="int4(round=stochastic)", one_launch=one)
        state = SimState()
        static.copy_(xs[0][rank])
        op(static, out=out)
        simulate(c, xs[0], state=state, q="int4(round=stochastic)")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        compiled = triton_backend.compilations
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            op(static, out=out)
        for replay in range(100):
            static.copy_(xs[replay % 5][rank])
            graph.replay()
            expected = simulate(c, xs[replay % 5], state=state, q="int4(round=stochastic)")[rank]
            assert torch.equal(bits(out), bits(expected)), f"replay {replay}, one_launch={one}"
        assert triton_backend.compilations == compiled > before, "nothing is compiled after bind"
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            op(static[:77])
        raise AssertionError("an unprepared count was captured")
    except RuntimeError as e:
        assert "before the graph is captured" in str(e), e

    # Autograd sees that what it saved was written to.
    for graphs in (False, True):
        op = c.bind(like=static, transport="symm", graphs=graphs)
        for _ in range(5):
            saved = static.float().requires_grad_().to(static.dtype)
            y = saved.square().sum()
            op(saved.detach(), out=saved.detach())
            try:
                y.backward()
                raise AssertionError("a gradient from what was overwritten")
            except RuntimeError as e:
                assert "modified by an inplace operation" in str(e), e
    # Counts and splits that come later need no kernels that bind has not compiled.
    n_odd = n * 1001
    odd = torch.randn(n_odd, device=device).bfloat16()
    ops = [
        load(name).bind(like=odd, transport="symm", graphs=False)
        for name in ("all_to_all_direct", "reduce_scatter_direct")
    ]
    compiled = triton_backend.compilations
    for later in ops:
        for count in (n * 1000, n, n * 128):
            later(odd[:count].clone())
    away = [0 if r == rank else 512 for r in range(n)]
    ops[0](odd[: sum(away)].clone(), input_splits=away, output_splits=away)
    torch.cuda.synchronize()
    assert triton_backend.compilations == compiled, "kernels were compiled after bind"

    big = torch.empty(1 << 29, dtype=torch.bfloat16, device=device)
    times = []
    for _ in range(2):
        began = time.perf_counter()
        c.bind(like=big, transport="symm", q="int8(group=256)")
        times.append(time.perf_counter() - began)
    assert times[0] < 30 and times[1] < 2, times
    if rank == 0:
        print(
            f"2,000 async calls, 1,000 counts, 200 replays right; bind of 1 GiB: {times[0]:.2f} s cold, {times[1]:.2f} s warm"
        )


def own_graphs(transport: str) -> None:
    """Calls that the op replays from graphs of its own equal simulate: other tensors, alignments, in place, async, states, slices, other streams;
    and a user's capture in between."""
    device = start()
    rank, n = dist.get_rank(), dist.get_world_size()
    cases = 0
    plans = (
        ("two_shot", "int8", 1),
        ("two_shot", "int4(round=stochastic)", 1),
        ("two_shot", "error_feedback(int4)", 1),
        ("ring", "int8", 2),
        ("one_shot", "int4", 1),
        ("all_gather_direct", "int8", 1),
        ("reduce_scatter_direct", "int8", 2),
        ("all_to_all_direct", "int4", 1),
    )
    ways = [(*plan, one) for plan in plans for one in one_launch(transport, plan[2]) if not (one and "feed" in plan[1])]
    for name, compressor, depth, one in ways:
        c = load(name)
        names = dict.fromkeys(c.program().codecs, compressor)
        count = 40000 * n + (0 if c.kind in ("reduce_scatter", "all_to_all") else 3)
        stateful = "stochastic" in compressor or "feedback" in compressor
        options = {"transport": transport, "depth": depth, "one_launch": one}
        op = c.bind(like=torch.empty(count + 8, dtype=torch.bfloat16, device=device), **options, **names)
        xs = [inputs(n, count, torch.bfloat16, s, device) for s in range(4)]
        state = SimState()
        want = None if stateful else [simulate(c, x, **names)[rank] for x in xs]
        outs = (n if c.kind == "all_gather" else 1) * count // (n if c.kind == "reduce_scatter" else 1)
        other = torch.cuda.Stream()
        for call in range(24):
            which = call % 4
            expected = simulate(c, xs[which], state=state, **names)[rank] if want is None else want[which]
            shift = (0, 8, 1)[call % 3]  # in elements: 16 bytes or not
            x = torch.empty(count + shift, dtype=torch.bfloat16, device=device)[shift:].copy_(xs[which][rank])
            if call % 4 == 3 and c.kind == "all_reduce":
                got = op(x, out=x)
            elif call % 4 == 2:
                got = op(x, async_op=True).wait()
            elif call % 4 == 1:
                got = op(x, out=torch.empty(outs + 1, dtype=torch.bfloat16, device=device)[call % 2 :][:outs])
            else:
                other.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(other):
                    got = op(x)
                torch.cuda.current_stream().wait_stream(other)
            assert torch.equal(bits(got), bits(expected)), (name, compressor, depth, call)
            cases += 1
        if c.kind == "all_to_all" and transport == "nccl":
            assert "copies of the user's memory" in op.graphs.why
        else:
            assert op.graphs.replays == (21 if "feedback" in compressor else 22) and len(op.graphs.of) == 1, (
                name,
                compressor,
                op.graphs.describe(),
            )
        if want is not None:
            graph, static = torch.cuda.CUDAGraph(), xs[1][rank].clone()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                y = op(static)
            graph.replay()
            assert torch.equal(bits(y), bits(want[1])), name
            assert torch.equal(bits(op(xs[2][rank])), bits(want[2])), name
    if rank == 0:
        print(f"{transport}: {cases} calls from graphs of the op's own are right")


def uniform(transport: str) -> None:
    """Rank 1 brings new pointers in every call, and rank 0 never: 1,000 calls, right and no hang."""
    device = start()
    rank, n = dist.get_rank(), dist.get_world_size()
    c = load("two_shot")
    for graphs, one in [(g, o) for g in (True, False) for o in one_launch(transport)]:
        xs = [inputs(n, 30001, torch.bfloat16, s, device) for s in range(5)]
        want = [simulate(c, x)[rank] for x in xs]
        op = c.bind(like=xs[0][0], transport=transport, graphs=graphs, one_launch=one)
        static, out = torch.empty_like(xs[0][0]), torch.empty_like(xs[0][0])
        wrong = torch.zeros((), dtype=torch.int64, device=device)
        held: list[torch.Tensor] = []
        for call in range(1000):
            if rank == 0:
                static.copy_(xs[call % 5][rank])
                got = op(static, out=out)
            else:
                x = torch.empty(30001 + 8, dtype=torch.bfloat16, device=device)[call % 9 :][:30001].copy_(
                    xs[call % 5][rank]
                )
                got = op(x, out=torch.empty_like(out))
                held = [*held[-50:], x, got]
            wrong += (bits(got) != bits(want[call % 5])).any()
        assert int(wrong) == 0, f"{int(wrong)} wrong results, graphs={graphs}"
        assert op.graphs.replays == (998 if graphs else 0), op.graphs.describe()
    if rank == 0:
        print(f"{transport}: 1,000 calls a way with new pointers on one rank are right")


def ordering(calls: int) -> None:
    """Twelve groups, first used in different orders by the ranks' own threads of work, one hardware queue; torch's all_reduces on other streams
    and in graphs in between."""
    device = start()
    rank, n = dist.get_rank(), dist.get_world_size()
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    groups = [dist.new_group() for _ in range(12)]
    c = load("two_shot")
    nccl = dist.get_backend() == "nccl"
    transports = ("nccl", "torch") if nccl else ("symm",)
    count = 5000
    xs = [inputs(n, count, torch.bfloat16, s, device) for s in range(3)]
    want = [simulate(c, x)[rank] for x in xs]
    ops = [c.bind(g, like=xs[0][0], transport=transports[i % len(transports)]) for i, g in enumerate(groups)]
    beside, plain = torch.cuda.Stream(), torch.ones(1000, device=device)
    graph = torch.cuda.CUDAGraph()
    if nccl:
        dist.all_reduce(plain)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            dist.all_reduce(plain)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    order = torch.Generator().manual_seed(
        7
    )  # the order of calls is the same on all ranks: what the contract asks of users
    for call in range(calls):
        op = ops[int(torch.randint(12, (), generator=order))]
        wrong += (bits(op(xs[call % 3][rank])) != bits(want[call % 3])).any()
        if nccl and call % 10 == 3:
            with torch.cuda.stream(beside):
                dist.all_reduce(plain)
        if nccl and call % 10 == 7:
            beside.synchronize()
            graph.replay()
            torch.cuda.current_stream().synchronize()
    assert int(wrong) == 0, f"{int(wrong)} wrong results"
    if rank == 0:
        print(f"{calls} calls on 12 groups over {', '.join(transports)} are right")


def passing(transport: str) -> None:
    """Groups that come and go leave nothing behind: no thread, no communicator, no memory."""
    device = start()
    rank, n = dist.get_rank(), dist.get_world_size()
    c, xs = load("two_shot"), inputs(n, 1 << 20, torch.bfloat16, 0, device)
    want, free = simulate(c, xs)[rank], []
    for _ in range(6):
        group = dist.new_group()
        op = c.bind(group, like=xs[rank], transport=transport)
        assert torch.equal(bits(op(xs[rank])), bits(want))
        torch.cuda.synchronize()
        dist.barrier()
        dist.destroy_process_group(group)
        del op, group
        gc.collect()
        end = time.monotonic() + 20
        while any(t.name == "coccl-nccl-watchdog" for t in threading.enumerate()):
            assert time.monotonic() < end, "a communicator of a group that is gone is still watched"
            time.sleep(0.05)
        dist.barrier()
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        dist.barrier()
        free.append(torch.cuda.mem_get_info(device)[0] >> 20)
    assert min(free[2:]) >= free[1] - 16, f"MiB free after each group: {free}"
    if rank == 0:
        print(f"{transport}: MiB free after each group: {free}")


def faults(transports: list[str]) -> None:
    """A peer that stays away: the wait gives up at the deadline, the next call raises and names step and peer."""
    device = start(seconds=4)
    rank, x = dist.get_rank(), torch.ones(5000, device=device)
    ways = [(t, one) for t in transports for one in one_launch(t)]
    ops = [load("two_shot").bind(like=x, transport=t, one_launch=one) for t, one in ways]
    for op in ops:
        op(x)
    torch.cuda.synchronize()
    if rank == 1:
        time.sleep(8 * len(ops))
        os._exit(0)
    for op, way in zip(ops, ways, strict=True):
        began = time.monotonic()
        op(x)
        torch.cuda.synchronize()
        time.sleep(1.0)
        try:
            op(x)
            raise AssertionError("nothing was raised")
        except coccl_dsl.CollectiveTimeout as e:
            assert "step" in str(e) and "1" in str(e), e
            assert time.monotonic() - began < 20
            print(f"{way}: {e}", flush=True)
    os._exit(0)


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("name")
    p.add_argument("--transports", nargs="+", default=["symm"])
    p.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    p.add_argument("--compressors", nargs="+", default=list(COMPRESSORS))
    p.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "float16"])
    p.add_argument("--depths", nargs="+", type=int, default=[1])
    p.add_argument("--calls", type=int, default=10_000)
    a = p.parse_args()
    if a.name == "equality":
        equality(a.transports, a.algorithms, a.compressors, [getattr(torch, d) for d in a.dtypes], a.depths)
    elif a.name in ("stateful", "lifetimes", "mixed"):
        {"stateful": stateful, "mixed": mixed, "lifetimes": lifetimes}[a.name]()
    elif a.name == "faults":
        faults(a.transports)
    elif a.name in ("own_graphs", "uniform", "passing"):
        for transport in a.transports:
            {"own_graphs": own_graphs, "uniform": uniform, "passing": passing}[a.name](transport)
    elif a.name == "ordering":
        ordering(a.calls)
    else:
        raise SystemExit(f"no worker {a.name}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
