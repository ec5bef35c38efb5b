# 8-bit floats (e4m3: 4 bits of precision) under one scale a group: 8.125 bits a value at group=128, scale=bf16.
# The error follows each value's own magnitude: better than int8 only where magnitudes differ much within a group.
compressor fp8_e4m3(group: int = 128, scale_type: type = bf16) {
  wire {
    value : e4m3[group]
    scale : scale_type
  }
  nonfinite scale
  compress(x) {
    scale = up(max(abs(x)) / 448)
    value = x / nonzero(scale)
  }
  decompress {
    yield value * scale
  }
  claim abs(x - decompressed) <= max(0.0625 * abs(x), 0.0009765625 * scale) + tiny when scale_type == bf16 or scale_type == f32
}
