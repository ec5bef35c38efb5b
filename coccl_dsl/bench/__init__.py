"""coccl-bench: compiled collectives beside NCCL, measured side by side in one run, every result checked bit for bit."""
