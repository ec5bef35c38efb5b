# expect E405
compressor both_from_value_of_compress(group: int = 128) {
  state base : bf16 both
  wire { code : s4[group]   scale : bf16 }
  nonfinite scale
  compress(x) {
    let d = x - base
    scale = up(max(abs(d)) / 7)
    code  = quantize(d / nonzero(scale), -7, 7)
  }
  decompress { yield base + code * scale }
  update both { base = base + d }
}
