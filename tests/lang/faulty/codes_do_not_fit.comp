# expect E216
compressor codes_do_not_fit(group: int = 128) {
  wire {
    code  : s4[group]
    scale : bf16
  }
  nonfinite scale
  compress(x) {
    scale = up(max(abs(x)) / 7)
    code  = quantize(x / nonzero(scale), -8, 8, nearest)
  }
  decompress { yield code * scale }
}
