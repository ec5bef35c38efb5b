# expect E408
compressor length_mismatch(group: int = 128) {
  wire {
    code  : s4[group div 2]
    scale : bf16
  }
  nonfinite scale
  compress(x) {
    scale = up(max(abs(x)) / 7)
    code  = quantize(x / nonzero(scale), -7, 7, nearest)
  }
  decompress { yield code * scale }
}
