# The k values of largest magnitude of each block as bf16 with their places: 0.375 bits a value for 6 of 512.
# Everything else is lost: use error_feedback(topk). For gradients only. Stored in the order of their places.
compressor topk(group: int = 512, k: int = 6) {
  wire {
    value : bf16[k]
    place : u16[k]
  }
  nonfinite value
  compress(x) {
    let chosen = first(k, top(abs(x), k))
    value = gather(x, chosen)
    place = chosen
  }
  decompress {
    yield scatter(place, value)
  }
  claim abs(x - decompressed) <= max(0.00390625 * abs(x), 1.00390625 * min(abs(value))) + tiny
}
