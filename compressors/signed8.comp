# QuickReduce's Q8: the value of largest magnitude, with its sign, is code -128 exactly, so that all 256 codes are used.
# 8.5 bits a value at group=32. Past the range of a half-precision scale values saturate, below it they are 0: scale_type=bf16 has more.
compressor signed8(group: int = 32, scale_type: type = f16) {
  wire {
    code  : s8[group]
    scale : scale_type
  }
  nonfinite scale
  compress(x) {
    scale = at(x, argmax(abs(x))) / -128
    code  = quantize(x / nonzero(scale), -128, 127)
  }
  decompress {
    yield code * scale
  }
  claim abs(x - decompressed) <= abs(scale) + max(max(abs(x)) - 128 * abs(scale), 0) + tiny
}
