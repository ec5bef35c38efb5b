# Spike reserving (Flash Communication): the largest and the smallest value of a group go as bf16 with their places,
# the rest as 2-bit codes over the range that is left: 4.5 bits a value at group=32.
# Where outliers matter more than the rest; nvfp4 is better otherwise.
compressor spike2(group: int = 32) {
  wire {
    code     : u2[group]
    low      : bf16
    step     : bf16
    top      : bf16
    least    : bf16
    top_at   : u8
    least_at : u8
  }
  nonfinite step
  compress(x) {
    top_at   = argmax(x)
    least_at = argmax(-x)
    top      = max(x)
    least    = min(x)
    # Of the rest: a spike's place takes the other spike's value. The spikes' own codes do not matter.
    low  = down(min(put(x, least_at, max(x))))
    step = up((max(put(x, top_at, min(x))) - low) / 3)
    code = quantize((x - low) / nonzero(step), 0, 3)
  }
  decompress {
    yield put(put(low + code * step, least_at, least), top_at, top)
  }
  claim abs(x - decompressed) <= max(0.5 * step, 0.00390625 * abs(x)) + 4 * tiny
}
