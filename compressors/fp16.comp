# Half precision on the wire: 16 bits, 11 of precision, magnitudes up to 65504; larger ones saturate.
# For activations and scaled gradients of f32 tensors; bf16 keeps the range instead.
compressor fp16(group: int = 8) {
  wire {
    value : f16[group]
  }
  nonfinite pass
  exact for f16
  compress(x) {
    value = x
  }
  decompress {
    yield value
  }
  claim abs(x - decompressed) <= 0.00048828125 * abs(x) + 0.000000059604644775390625 + max(abs(x) - 65504, 0)
}
