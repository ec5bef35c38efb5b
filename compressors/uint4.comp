# Asymmetric 4-bit codes from the group's minimum on, in steps: 5 bits a value at group=32, scales=bf16.
# The minimum is rounded down and the step up, so that the codes cover the group. The smallest error at about 5 bits, and the choice for activations.
compressor uint4(group: int = 32, round: rounding = nearest, scale_type: type = bf16) {
  wire {
    code : u4[group]
    low  : scale_type
    step : scale_type
  }
  nonfinite step
  compress(x) {
    low  = down(min(x))
    step = up((max(x) - low) / 15)
    code = quantize((x - low) / nonzero(step), 0, 15, round)
  }
  decompress {
    yield low + code * step
  }
  claim abs(x - decompressed) <= 0.5 * step + 4 * tiny when round == nearest and (scale_type == bf16 or scale_type == f32)
  claim abs(x - decompressed) <= step + 4 * tiny when round == stochastic and (scale_type == bf16 or scale_type == f32)
}
