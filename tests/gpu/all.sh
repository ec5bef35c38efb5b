#!/bin/bash
# All GPU tests on one machine with two GPUs, side by side where they do not time anything. Logs go to $1.
out=${1:-/tmp}
run() { timeout "${2:-240}" python3 -m pytest tests/gpu/test_gpu.py -q -p no:cacheprovider -k "$1" >"$out/gpu_$3.log" 2>&1; echo "$1: $(tail -1 "$out/gpu_$3.log")"; }
run "every_transport and bfloat16" 240 bf16 &
run "every_transport and float32" 240 f32 &
run "every_transport and float16 and not bfloat16" 240 f16 &
run "more_ranks or slices or state_and" 240 ranks &
wait
run "lifetimes or missing_peer" 120 life
run "delays or every_wait" 200 races
