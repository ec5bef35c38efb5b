# expect E215
compressor wraps_no_parameter(c: compressor = int8) {
  wire { inner : wire(d) }
  compress(x) { inner = compress(d, x) }
  decompress { yield decompress(inner) }
}
