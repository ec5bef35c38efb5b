#!/bin/bash
# All GPU tests on one machine with one or two GPUs, side by side where they do not time anything. Logs go to $1.
# Ranks that share a GPU take turns on it, a few milliseconds each; under NVIDIA's MPS, which this starts there, they run side by side.
out=${1:-/tmp}
if [ "$(nvidia-smi -L | wc -l)" = 1 ] && command -v nvidia-cuda-mps-control >/dev/null; then
    export CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
    nvidia-cuda-mps-control -d
    trap 'echo quit | nvidia-cuda-mps-control' EXIT
fi
run() { timeout "${2:-240}" python3 -m pytest tests/gpu/test_gpu.py -q -p no:cacheprovider -k "$1" >"$out/gpu_$3.log" 2>&1; echo "$1: $(tail -1 "$out/gpu_$3.log")"; }
# It compares the memory that is free, and so is alone.
run "come_and_go" 90 come
run "every_transport and bfloat16" 240 bf16 &
run "every_transport and float32" 240 f32 &
run "every_transport and float16 and not bfloat16" 240 f16 &
run "more_ranks or slices or state_and" 240 ranks &
wait
run "graphs_of or new_pointers or twelve" 240 graphs &
run "mapped_memory or lifetimes or missing_peer" 240 life &
wait
run "delays or every_wait" 240 races
