# OCP MXFP4: blocks of 32 e2m1 values (0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives) under a power of two, 4.25 bits a value.
# The standard's exact bits: X = 2^(floor(log2 amax) - 2) as e8m0; values above 6 X saturate, by a quarter at most.
compressor mxfp4(group: int = 32) {
  wire {
    value : e2m1[group]
    scale : e8m0
  }
  nonfinite scale
  compress(x) {
    scale = ldexp(1, exponent(max(abs(x))) - 2)
    value = x / scale
  }
  decompress {
    yield value * scale
  }
  claim abs(x - decompressed) <= 0.25 * max(abs(x), scale) + tiny
}
