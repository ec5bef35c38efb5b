# 8-bit floats (e5m2: 3 bits of precision, 32 powers of two) under one scale a group: 8.125 bits a value at group=128, scale=bf16.
# For gradients whose magnitudes differ by many powers of two within a group; otherwise e4m3 is twice as exact.
compressor fp8_e5m2(group: int = 128, scale_type: type = bf16) {
  wire {
    value : e5m2[group]
    scale : scale_type
  }
  nonfinite scale
  compress(x) {
    scale = up(max(abs(x)) / 57344)
    value = x / nonzero(scale)
  }
  decompress {
    yield value * scale
  }
  claim abs(x - decompressed) <= max(0.125 * abs(x), 0.00000762939453125 * scale) + tiny when scale_type == bf16 or scale_type == f32
}
