# expect E206
compressor opens_no_field(c: compressor = int8) {
  wire { inner : wire(c) }
  compress(x) { inner = compress(c, x) }
  decompress { yield decompress(outer) }
}
