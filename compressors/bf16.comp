# bfloat16 on the wire: 16 bits, 8 of precision, the range of float32. For f32 tensors, at no risk.
compressor bf16(group: int = 8) {
  wire {
    value : bf16[group]
  }
  nonfinite pass
  exact for bf16
  compress(x) {
    value = x
  }
  decompress {
    yield value
  }
  claim abs(x - decompressed) <= 0.00390625 * abs(x) + tiny
}
