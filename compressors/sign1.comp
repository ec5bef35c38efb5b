# One bit a value, the sign, and the mean magnitude of the group: 1.0078 bits a value at group=2048.
# Use error_feedback(sign1), as 1-bit Adam does: the mean magnitude is the best scale, and what it misses is sent later.
compressor sign1(group: int = 2048) {
  wire {
    sign : u1[group]
    size : bf16
  }
  nonfinite size
  compress(x) {
    size = mean(abs(x / group)) * group
    sign = x >= 0
  }
  decompress {
    yield select(sign == 1, size, -size)
  }
  claim abs(x - decompressed) <= max(max(abs(x)), size) + tiny
}
