# expect E202
compressor parameter_as_field(group: int = 128) {
  wire {
    code  : s4[group]
    group : bf16
  }
  nonfinite group
  compress(x) {
    group = up(max(abs(x)) / 7)
    code  = quantize(x / nonzero(group), -7, 7, nearest)
  }
  decompress { yield code * group }
}
