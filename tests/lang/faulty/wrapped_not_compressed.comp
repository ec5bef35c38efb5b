# expect E204
compressor wrapped_not_compressed(c: compressor = int8) {
  wire { inner : wire(c) }
  compress(x) { inner = x }
  decompress { yield decompress(inner) }
}
