# expect E408
compressor flag_of_parameter(group: int = 128) {
  wire {
    code  : s4[group]
    scale : bf16
  }
  nonfinite scale
  flag odd when group == 1
  compress(x) {
    scale = up(max(abs(x)) / 7)
    code  = quantize(x / nonzero(scale), -7, 7, nearest)
  }
  decompress { yield code * scale }
}
