# int8 in the Hadamard basis of 32 elements: an outlier is spread over its block. Sums stay in the basis and are rotated back once.
# With sdp4bit.coll these are SDP4Bit's gradients. 8.125 bits a value at group=128, scale=bf16.
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
  claim abs(x - decompressed) <= 0.5 * scale + tiny when round == nearest and (scale_type == bf16 or scale_type == f32)
  claim abs(x - decompressed) <= scale + tiny when round == stochastic and (scale_type == bf16 or scale_type == f32)
}
