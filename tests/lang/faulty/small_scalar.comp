# expect E407
compressor small_scalar(group: int = 128) {
  wire {
    code  : s4[group]
    scale : s4
  }
  nonfinite scale
  compress(x) {
    scale = up(max(abs(x)) / 7)
    code  = quantize(x / nonzero(scale), -7, 7, nearest)
  }
  decompress { yield code * scale }
}
