"""Error feedback, weight differences and stochastic rounding over several calls, with a state_dict carried to a new op in between."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from worlds import inputs, same

from coccl_dsl import simulate
from coccl_dsl.pipeline import load
from coccl_dsl.runtime.simulate import SimState


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, n = dist.get_rank(), dist.get_world_size()
    for name in ("two_shot", "ring", "all_gather_direct"):
        c = load(name)
        for compressor in (
            "error_feedback(int4)",
            "int4(round=stochastic)",
            "weight_delta4",
            "error_feedback(weight_delta4)",
        ):
            bound = dict.fromkeys(c.program().codecs, compressor)
            count = 35001
            op = c.bind(like=torch.empty(count), seed=7, **bound)
            state = SimState()
            seen = []
            for call in range(4):
                xs = inputs(n, count, torch.float32, 0 if "stochastic" in compressor else call)
                want = simulate(c, xs, state=state, seed=7, **bound)[rank]
                got = op(xs[rank])
                assert same(got, want), (name, compressor, call)
                seen.append(got)
                if call == 1:
                    saved = op.state_dict()
                    op = c.bind(like=torch.empty(count), seed=7, **bound)
                    op.load_state_dict(saved)
            if "stochastic" in compressor:
                assert not torch.equal(seen[0], seen[1]), "each call draws other numbers"
            assert op.flags()["version"] == 0
            op.reset()
            xs = inputs(n, count, torch.float32, 9)
            if "stochastic" not in compressor:
                assert same(op(xs[rank]), simulate(c, xs, seed=7, **bound)[rank]), "after reset, as at first"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
