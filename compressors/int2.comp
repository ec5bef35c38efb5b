# Codes -1, 0 and 1 times the group's largest magnitude: 2.125 bits a value at group=128, scale=bf16.
# Half of the value is lost, so only inside error_feedback(...), or rounded stochastically where very many are summed.
compressor int2(group: int = 128, round: rounding = nearest, scale_type: type = bf16) {
  wire {
    code  : s2[group]
    scale : scale_type
  }
  nonfinite scale
  compress(x) {
    scale = up(max(abs(x)))
    code  = quantize(x / nonzero(scale), -1, 1, round)
  }
  decompress {
    yield code * scale
  }
  claim abs(x - decompressed) <= 0.5 * scale + tiny when round == nearest and (scale_type == bf16 or scale_type == f32)
  claim abs(x - decompressed) <= scale + tiny when round == stochastic and (scale_type == bf16 or scale_type == f32)
}
