# expect E409
compressor stochastic_twice(group: int = 128) {
  wire {
    code  : s4[group]
    scale : bf16
  }
  nonfinite scale
  compress(x) {
    scale = up(max(abs(x)) / 7)
    code  = quantize(x / nonzero(scale), -7, 7, nearest)
  }
  decompress { yield quantize(code * scale, -7, 7, stochastic) }
}
