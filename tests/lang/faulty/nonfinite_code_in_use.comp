# expect E216
compressor nonfinite_code_in_use(group: int = 128) {
  wire {
    code  : s4[group]
    scale : bf16
  }
  nonfinite code code = -7
  compress(x) {
    scale = up(max(abs(x)) / 7)
    code  = quantize(x / nonzero(scale), -7, 7, nearest)
  }
  decompress { yield code * scale }
}
