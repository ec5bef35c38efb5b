# expect E403
compressor never_assigned(group: int = 128) {
  wire {
    code  : s4[group]
    scale : bf16
  }
  nonfinite scale
  compress(x) {
    code  = quantize(x / 7, -7, 7, nearest)
  }
  decompress { yield code * scale }
}
