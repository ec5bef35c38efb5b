# expect E407
compressor nonfinite_of_codes(group: int = 128) {
  wire {
    code  : s4[group]
    scale : bf16
  }
  nonfinite code
  compress(x) {
    scale = up(max(abs(x)) / 7)
    code  = quantize(x / nonzero(scale), -7, 7, nearest)
  }
  decompress { yield code * scale }
}
