# QuickReduce's Q6: the value of largest magnitude, with its sign, is code -32 exactly. A code is sent as a plane of 4 bits and one of 2.
# 6.5 bits a value at group=32. Past the range of a half-precision scale values saturate, below it they are 0: scale_type=bf16 has more.
compressor signed6(group: int = 32, scale_type: type = f16) {
  wire {
    low   : u4[group]
    high  : u2[group]
    scale : scale_type
  }
  nonfinite scale
  compress(x) {
    scale = at(x, argmax(abs(x))) / -32
    let code = quantize(x / nonzero(scale), -32, 31) + 32
    low  = plane(code, 0, 4)
    high = plane(code, 4, 2)
  }
  decompress {
    yield (low + (high << 4) - 32) * scale
  }
  claim abs(x - decompressed) <= abs(scale) + max(max(abs(x)) - 32 * abs(scale), 0) + tiny
}
