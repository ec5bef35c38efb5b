# OCP MXFP8: blocks of 32 e4m3 (or element=e5m2) values under a power of two, 8.25 bits a value. The standard's exact bits:
# X = 2^(floor(log2 amax) - emax) as e8m0; values above the element's largest times X saturate, by an eighth at most.
compressor mxfp8(group: int = 32, element: type = e4m3) {
  wire {
    value : element[group]
    scale : e8m0
  }
  nonfinite scale
  compress(x) {
    scale = ldexp(1, exponent(max(abs(x))) - select(element == e5m2, 15, 8))
    value = x / scale
  }
  decompress {
    yield value * scale
  }
  claim abs(x - decompressed) <= 0.125 * abs(x) + 0.0009765625 * scale + tiny when element == e4m3
  claim abs(x - decompressed) <= 0.125 * abs(x) + 0.00000762939453125 * scale + tiny when element == e5m2
}
