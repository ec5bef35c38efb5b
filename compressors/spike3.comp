# Spike reserving (Flash Communication): the largest and the smallest value of a group go as bf16 with their places,
# the rest as 3-bit codes (planes of 2 bits and 1) over the range that is left: 5.5 bits a value at group=32.
# Exact at outliers, for activations.
compressor spike3(group: int = 32) {
  wire {
    low2     : u2[group]
    high1    : u1[group]
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
    top      = at(x, top_at)
    least    = at(x, least_at)
    # The spikes' places take a value that stays: the first one.
    let i = select(top_at != 0 and least_at != 0, 0, select(top_at != 1 and least_at != 1, 1, 2))
    let rest = put(put(x, top_at, at(x, i)), least_at, at(x, i))
    low  = down(min(rest))
    step = up((max(rest) - low) / 7)
    let code = quantize((rest - low) / nonzero(step), 0, 7)
    low2  = plane(code, 0, 2)
    high1 = plane(code, 2, 1)
  }
  decompress {
    yield put(put(low + (low2 + (high1 << 2)) * step, least_at, least), top_at, top)
  }
  claim abs(x - decompressed) <= max(0.5 * step, 0.00390625 * abs(x)) + 4 * tiny
}
