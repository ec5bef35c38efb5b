# expect E409
compressor read_before_assigned(group: int = 128) {
  wire {
    code  : s4[group]
    scale : bf16
  }
  nonfinite scale
  compress(x) {
    code  = quantize(x / nonzero(scale), -7, 7, nearest)
    scale = up(max(abs(x)) / 7)
  }
  decompress { yield code * scale }
}
