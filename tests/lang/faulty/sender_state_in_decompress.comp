# expect E405
compressor sender_state_in_decompress(group: int = 128) {
  state base : bf16 sender
  wire { code : s4[group]   scale : bf16 }
  nonfinite scale
  compress(x) {
    let d = x - base
    scale = up(max(abs(d)) / 7)
    code  = quantize(d / nonzero(scale), -7, 7)
  }
  decompress { yield base + code * scale }
  update sender { base = decompressed }
}
