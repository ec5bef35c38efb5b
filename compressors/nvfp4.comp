# NVFP4: blocks of 16 e2m1 values under an e4m3 scale, and those under one float32 a frame: 4.5039 bits a value.
# The smallest error at 4.5 bits where there are outliers. Blocks far below the frame's largest value (a 2^-19th) become 0.
compressor nvfp4(group: int = 16) {
  wire {
    value : e2m1[group]
    scale : e4m3
    whole : f32 frame
  }
  nonfinite scale
  compress(x) {
    whole = max(abs(x)) / 2688
    scale = max(abs(x)) / (6 * nonzero(whole))
    value = x / nonzero(scale * whole)
  }
  decompress {
    yield value * (scale * whole)
  }
  claim abs(x - decompressed) <= 0.25 * max(abs(x), scale * whole) + max(max(abs(x)) - 6 * (scale * whole), 0) + tiny
}
