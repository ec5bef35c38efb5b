# expect E408
compressor lengths_combined(group: int = 128) {
  wire {
    code  : s4[group]
    scale : bf16
  }
  nonfinite scale
  compress(x) {
    scale = up(max(abs(x)) / 7)
    code  = quantize(x * slice(x, 0, 2), -7, 7, nearest)
  }
  decompress { yield code * scale }
}
