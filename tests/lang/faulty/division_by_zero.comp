# expect E311
compressor division_by_zero(group: int = 128) {
  wire {
    code  : s4[group]
    scale : bf16
  }
  nonfinite scale
  compress(x) {
    scale = up(max(abs(x)) / 0)
    code  = quantize(x / nonzero(scale), -7, 7, nearest)
  }
  decompress { yield code * scale }
}
