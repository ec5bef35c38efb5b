# expect E404
compressor no_nonfinite(group: int = 128) {
  wire {
    code  : s4[group]
    scale : bf16
  }
  compress(x) {
    scale = up(max(abs(x)) / 7)
    code  = quantize(x / nonzero(scale), -7, 7, nearest)
  }
  decompress { yield code * scale }
}
