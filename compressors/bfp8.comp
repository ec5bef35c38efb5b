# Block floating point: 8-bit codes under a power of two: 8.0625 bits a value at group=128.
# The cheapest scale, exact to multiply; int8 has up to half the error for half a byte more a group.
compressor bfp8(group: int = 128) {
  wire {
    code  : s8[group]
    scale : e8m0
  }
  nonfinite scale
  compress(x) {
    scale = up(max(abs(x)) / 127)
    code  = quantize(x / scale, -127, 127)
  }
  decompress {
    yield code * scale
  }
  claim abs(x - decompressed) <= 0.5 * scale + tiny
}
