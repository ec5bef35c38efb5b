"""Whether training keeps its accuracy: GPT 350M on two data-parallel ranks, 300 steps, one seed, with each policy; the final validation losses.

    python benchmarks/training_accuracy.py --json benchmarks/results/training_accuracy.json      # one or two GPUs, about ten minutes
    python benchmarks/training_accuracy.py --runs off --json FILE                                # or a part; the rest later, with the same FILE
    python benchmarks/training_accuracy.py --runs dp --again --json FILE                         # once more: GPUs are not deterministic
    python benchmarks/training_accuracy.py --merge A.json B.json --json FILE                     # of calls that ran beside each other
    python benchmarks/training_accuracy.py --small --json /tmp/a.json                            # a tiny model on the CPU: tries it out

    off    policies/off.toml: everything through coccl_dsl, nothing compressed
    dp     policies/dp.toml (bar: a validation loss within 0.5 % of off's)
    bad    gradients in 2 bits, in groups of 2048, with no feedback of what is lost: what a policy that is wrong looks like (bar: not within 0.5 %)

Each run is examples/train_3d.py under torchrun, with processes and a limit of its own: DDP, gradients bfloat16 on their way, 16 x 512 bytes of Python's
sources a step. Two ranks share a GPU where there is one, over the loopback's sockets: losses are the same there, times are not. A run that is in
FILE with the same settings is not made again, unless --again says so: then the means of all runs of a name are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# Without feedback, in groups so large that nearest rounding leaves next to nothing. (In groups of 128 AdamW hardly minds: 0.3 % more loss after 300
# steps of GPT 350M.)
BAD = '[[rule]]\non = ["dp.all_reduce", "fsdp.reduce_scatter"]\ncompressor = "int2(group=2048)"\n'
RUNS = ("off", "dp", "bad")
WITHIN = 0.005
LARGE = dict(model="gpt-350m", steps=300, batch=16, length=512, lr=3e-4, warmup=30, reduce="bf16", bucket_mb=256)
LARGE |= dict(validation_batches=32, log_every=10)
SMALL = dict(model="gpt-tiny", steps=100, batch=16, length=64, lr=3e-3, warmup=10, dtype="f32", bucket_mb=25)
SMALL |= dict(validation_batches=16, log_every=10)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", type=Path, default=Path("benchmarks/results/training_accuracy.json"))
    p.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    p.add_argument(
        "--merge", nargs="+", type=Path, metavar="FILE", help="add the runs of these to --json's, and run nothing"
    )
    p.add_argument("--small", action="store_true", help="a tiny model, float32, also without a GPU")
    p.add_argument("--data", choices=("ddp", "fsdp"), default="ddp")
    p.add_argument("--steps", type=int, default=0, help="instead of 300")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--seconds", type=float, default=330.0, help="limit of each run")
    p.add_argument("--again", action="store_true", help="make runs that FILE has once more")
    options = p.parse_args()
    settings = {**(SMALL if options.small else LARGE), "data": options.data, "seed": options.seed, "mesh": "2x1x1"}
    if options.steps:
        settings["steps"] = options.steps
    try:
        document = read(options.json, settings)
    except ValueError as e:
        print(f"training_accuracy: {e}", file=sys.stderr)
        return 2
    from coccl_dsl.cli.bench import provenance

    if options.merge:
        try:
            merge(document, options.merge)
        except (OSError, ValueError) as e:
            print(f"training_accuracy: {e}", file=sys.stderr)
            return 2
        document["compared"] = compared(document["runs"])
        options.json.write_text(json.dumps(document, indent=1))
    else:
        document |= provenance("python benchmarks/training_accuracy.py " + " ".join(sys.argv[1:]))
    failed = []
    for name in options.runs if not options.merge else ():
        if name in document["runs"] and not options.again:
            print(f"{name}: is there already", flush=True)
            continue
        try:
            made = run(name, settings, options.json, options.seconds)
        except RuntimeError as e:
            failed.append(name)
            print(f"{name}: {e}", file=sys.stderr, flush=True)
            continue
        made["repeats"] = [{k: document[k] for k in ("commit", "date")} | {"validation_loss": made["validation_loss"]}]
        add(document["runs"], name, made)
        document["compared"] = compared(document["runs"])
        options.json.write_text(json.dumps(document, indent=1))
    missed = [name for name, row in document.get("compared", {}).items() if not row["met"]]
    for name, made in document["runs"].items():
        row = document["compared"].get(name)
        of_off = f"{row['of_off']:+.2%} of off's, bar {'met' if row['met'] else 'MISSED'}" if row else ""
        start, sent = made["losses"][0], made["sent_share"]
        print(
            f"{name:<4} validation loss {' '.join(f'{loss:.4f}' for loss in losses(made))}  {of_off:<32} training loss {start:.2f} -> {made['losses'][-1]:.3f}   "
            f"sent {'-' if sent is None else f'{sent:.0%}'}   {made['seconds']:.0f} s"
        )
    print(f"# bars missed: {', '.join(missed) or 'none'}; runs that failed: {', '.join(failed) or 'none'}")
    return 1 if missed or failed else 0


def read(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What other calls have found. Raises ValueError where that was with other settings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return {"settings": settings, "runs": {}}
    found = json.loads(path.read_text())
    if found["settings"] != settings:
        odd = sorted(k for k in {*settings, *found["settings"]} if settings.get(k) != found["settings"].get(k))
        raise ValueError(f"{path} was made with other {', '.join(odd)}: name another --json, or delete it")
    return found


def add(runs: dict[str, dict[str, Any]], name: str, made: dict[str, Any]) -> None:
    """The youngest run of a name is kept whole, of the others the loss."""
    earlier = runs[name]["repeats"] if name in runs else []
    runs[name] = made | {"repeats": [*earlier, *made["repeats"]]}


def merge(document: dict[str, Any], files: list[Path]) -> None:
    """Add the runs of other files. Raises ValueError where those have other settings or another machine."""
    for path in files:
        other = json.loads(path.read_text())
        for key in ("settings", "machine", "versions"):
            if other.get(key) != document.setdefault(key, other.get(key)):
                raise ValueError(f"{path} has other {key} than the files before it")
        for key in ("command", "commit", "date"):
            document[key] = other[key]
        for name, made in other["runs"].items():
            one = {k: other[k] for k in ("commit", "date")} | {"validation_loss": made["validation_loss"]}
            add(document["runs"], name, {"repeats": [one], **made})


def losses(made: dict[str, Any]) -> list[float]:
    """Of all runs of a name."""
    return [one["validation_loss"] for one in made["repeats"]]


def run(name: str, settings: dict[str, Any], result: Path, seconds: float) -> dict[str, Any]:
    """One training. Raises RuntimeError, with what it said, for one that fails or is late."""
    log = result.with_suffix(f".{name}.jsonl")
    log.unlink(missing_ok=True)
    policy = ROOT / "policies" / f"{name}.toml"
    if name == "bad":
        policy = result.with_suffix(".bad.toml")
        policy.write_text(BAD)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += [str(ROOT / "examples" / "train_3d.py"), "--policy", str(policy), "--json", str(log), "--check-replicas"]
    command += [word for k, v in settings.items() for word in (f"--{k.replace('_', '-')}", str(v))]
    print(f"{name}: {' '.join(command[1:])}", flush=True)
    began = time.monotonic()
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    late = ""
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        late = f"not done after {seconds:.0f} s (--seconds): "
        process.terminate()  # torchrun ends its ranks, which a kill would leave behind
        try:
            said, _ = process.communicate(timeout=40)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
    if late or process.returncode:
        raise RuntimeError(f"{late}exit status {process.returncode}\n{said[-3000:]}")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    end, steps = lines[-1], [line for line in lines if line["kind"] == "step"]
    if end["replicas_differ"]:
        raise RuntimeError(f"replicas differ: {', '.join(end['replicas_differ'][:5])}")
    raw, sent = (sum(row[key] for row in end["bytes"]) for key in ("raw_bytes", "sent_bytes"))
    if name != "off" and not sent < 0.9 * raw:
        raise RuntimeError(f"nothing was compressed: {'; '.join(end['native']) or 'no rule fits a call'}")
    return {
        "policy": policy.read_text(),
        "validation_loss": end["validation_loss"],
        "losses": [line["loss"] for line in steps],
        "step_seconds": end["step_seconds"],
        "bytes": end["bytes"],
        "sent_share": sent / raw if raw else None,
        "weights": end["weights"],
        "seconds": time.monotonic() - began,
    }


def compared(runs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Mean losses against that of `off`, where it is there."""
    if "off" not in runs:
        return {}
    off, made = statistics.fmean(losses(runs["off"])), {}
    for name in ("dp", "bad"):
        if name in runs:
            of_off = statistics.fmean(losses(runs[name])) / off - 1
            # The loss of what does not learn at all may be no number.
            near = abs(of_off) <= WITHIN
            made[name] = {"of_off": of_off, "within": WITHIN, "met": near if name == "dp" else not near}
    return made


if __name__ == "__main__":
    raise SystemExit(main())
