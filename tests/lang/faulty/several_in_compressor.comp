# expect E201 E203
compressor several_in_compressor(group: int = 128) {
  wire {
    code  : s4[group]
    scale : bf16
  }
  nonfinite scale
  compress(x) {
    scale = up(maxx(abs(x)) / 7)
    code  = quantize(x, -7)
  }
  decompress { yield code * scale }
}
