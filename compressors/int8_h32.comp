# int8 in the Hadamard basis of 32 elements: an outlier is spread over its block. Sums stay in the basis and are rotated back once (SDP4Bit).
compressor int8_h32(group: int = 128, round: rounding = nearest, scale_type: type = bf16) {
  basis hadamard(32)
  wire {
    code  : s8[group]
    scale : scale_type
  }
  nonfinite scale
  compress(x) {
    scale = up(max(abs(x)) / 127)
    code  = quantize(x / nonzero(scale), -127, 127, round)
  }
  decompress {
    yield code * scale
  }
  claim abs(x - decompressed) <= 0.5 * scale + tiny when round == nearest
  claim abs(x - decompressed) <= scale + tiny when round == stochastic
}
