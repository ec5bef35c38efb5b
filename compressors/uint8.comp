# Asymmetric 8-bit codes from the group's minimum on, in steps: 8.25 bits a value at group=128, scales=bf16.
# The minimum is rounded down and the step up, so that the codes cover the group. For values that are not centred on zero, as activations are; for centred ones int8 takes less.
compressor uint8(group: int = 128, round: rounding = nearest, scale_type: type = bf16) {
  wire {
    code : u8[group]
    low  : scale_type
    step : scale_type
  }
  nonfinite step
  compress(x) {
    low  = down(min(x))
    step = up((max(x) - low) / 255)
    code = quantize((x - low) / nonzero(step), 0, 255, round)
  }
  decompress {
    yield low + code * step
  }
  claim abs(x - decompressed) <= 0.5 * step + 4 * tiny when round == nearest and (scale_type == bf16 or scale_type == f32)
  claim abs(x - decompressed) <= step + 4 * tiny when round == stochastic and (scale_type == bf16 or scale_type == f32)
}
