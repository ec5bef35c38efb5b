# 8-bit codes over one range a frame of 32,768 values (Bagua): 8.0078 bits a value. One outlier sets the step of the whole frame.
# Groups matter only to NaN and Inf: code 255 is kept for them, which leaves 255 levels.
compressor minmax_u8(group: int = 128) {
  wire {
    code : u8[group]
    low  : f32 frame
    step : f32 frame
  }
  nonfinite code code = 255
  compress(x) {
    low  = min(x)
    step = (max(x) - low) / 254
    code = quantize((x - low) / nonzero(step), 0, 254)
  }
  decompress {
    yield low + code * step
  }
  claim abs(x - decompressed) <= 0.5001 * step + 4 * tiny
}
