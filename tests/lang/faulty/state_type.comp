# expect E407
compressor state_type(group: int = 128) {
  state base : e4m3 both
  wire { code : s4[group]   scale : bf16 }
  nonfinite scale
  compress(x) {
    let d = x - base
    scale = up(max(abs(d)) / 7)
    code  = quantize(d / nonzero(scale), -7, 7)
  }
  decompress { yield base + code * scale }
  update both { base = x }
}
