# expect E401
compressor group_of_100(group: int = 100) {
  wire {
    code  : s4[group]
    scale : bf16
  }
  nonfinite scale
  compress(x) {
    scale = up(max(abs(x)) / 7)
    code  = quantize(x / nonzero(scale), -7, 7, nearest)
  }
  decompress { yield code * scale }
}
