# expect E107
compressor wraps_itself(c: compressor = wraps_itself) {
  wire { inner : wire(c) }
  compress(x) { inner = compress(c, x) }
  decompress { yield decompress(inner) }
}
