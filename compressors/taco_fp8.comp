# TACO: values are brought to one mean square, rotated, and sent as e4m3 under one float32 a group: 8.25 bits a value at group=128.
# For activations with outliers. NaN and Inf stay (TACO makes them 0), and the scale is not clamped, so that small values survive.
compressor taco_fp8(group: int = 128) {
  wire {
    value : e4m3[group]
    scale : f32
  }
  nonfinite scale
  compress(x) {
    let gain = clamp(448 * rsqrt(mean(x * x) + 0.000001), 0.001, 1000)
    let y = hadamard(x * gain, group)
    scale = up(max(abs(y)) / 448 / gain)
    value = y / nonzero(scale * gain)
  }
  decompress {
    yield hadamard(value, group) * scale
  }
  claim abs(x - decompressed) <= 16 * sqrt(group) * scale + 8 * group * tiny
}
