# bfloat16 on the wire: half the bytes of float32, 8 bits of precision.
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
