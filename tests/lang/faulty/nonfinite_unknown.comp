# expect E201
compressor nonfinite_unknown(group: int = 128) {
  wire {
    code  : s4[group]
    scale : bf16
  }
  nonfinite scal
  compress(x) {
    scale = up(max(abs(x)) / 7)
    code  = quantize(x / nonzero(scale), -7, 7, nearest)
  }
  decompress { yield code * scale }
}
