# QuickReduce's Q4: the value of largest magnitude, with its sign, is code -8 exactly, so that all 16 codes are used.
# 4.5 bits a value at group=32. Past the range of a half-precision scale values saturate, below it they are 0: scale_type=bf16 has more.
compressor signed4(group: int = 32, scale_type: type = f16) {
  wire {
    code  : s4[group]
    scale : scale_type
  }
  nonfinite scale
  compress(x) {
    scale = at(x, argmax(abs(x))) / -8
    code  = quantize(x / nonzero(scale), -8, 7)
  }
  decompress {
    yield code * scale
  }
  claim abs(x - decompressed) <= abs(scale) + max(max(abs(x)) - 8 * abs(scale), 0) + tiny
}
