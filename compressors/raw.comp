# The tensor's own dtype: rounds a float32 partial sum once, changes nothing else.
compressor raw(group: int = 8) {
  wire {
    value : input[group]
  }
  nonfinite pass
  exact for f32, bf16, f16
  compress(x) {
    value = x
  }
  decompress {
    yield value
  }
}
