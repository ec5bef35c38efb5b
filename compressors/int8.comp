# Symmetric 8-bit codes, one scale a group, rounded up so that no value is clipped: 8.125 bits a value at group=128, scale=bf16.
# The first choice for gradients and activations: four times as exact as fp8.
compressor int8(group: int = 128, round: rounding = nearest, scale_type: type = bf16) {
  wire {
    code  : s8[group]
    scale : scale_type
  }
  nonfinite scale
  compress(x) {
    scale = up(max(abs(x)) / 127)
    code  = quantize(x / nonzero(scale), -127, 127, round)
  }
  decompress {
    yield code * scale
  }
  claim abs(x - decompressed) <= 0.5 * scale + tiny when round == nearest and (scale_type == bf16 or scale_type == f32)
  claim abs(x - decompressed) <= scale + tiny when round == stochastic and (scale_type == bf16 or scale_type == f32)
}
