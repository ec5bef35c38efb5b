# 4-bit differences against what every rank already holds; the first call sends raw. 4.012 bits a value at group=2048.
# For weights that change little from step to step (SDP4Bit); errors do not add up, as the difference is to what was reconstructed.
compressor weight_delta4(group: int = 2048) {
  state base : bf16 both first raw
  wire {
    code  : s4[group]
    scale : bf16
  }
  nonfinite scale
  compress(x) {
    let d = x - base
    scale = up(max(abs(d)) / 7)
    code  = quantize(d / nonzero(scale), -7, 7, nearest)
  }
  decompress {
    yield base + code * scale
  }
  update both {
    base = decompressed
  }
  claim abs(x - decompressed) <= 0.5 * scale + tiny + 0.0000002384185791015625 * max(abs(base))
}
