# bf16 without loss in a fixed size: sign and mantissa whole, the exponent as 4 bits below the block's largest: 12.39 bits a value.
# Code 14 is exponent 0, code 15 one of 8 escapes. A block with more is counted by the flag and opens as NaN: replay that step with raw.
# For weights and activations that are gathered or sent on; a sum is rounded to bf16 first, as by raw.
compressor lossless_bf16(group: int = 512) {
  only bf16
  exact for bf16
  wire {
    mantissa : u8[group]
    code     : u4[group]
    escape   : u8[8]
    place    : u16[8]
    base     : u8
  }
  nonfinite pass
  flag overflow code base = 255 when sum(select(code == 15, 1, 0)) > 8
  compress(x) {
    let word = bits(x) >> 16
    let power = (word >> 7) & 255
    mantissa = (word & 127) | ((word >> 8) & 128)
    base     = max(select(power == 255, 0, power))
    let below = base - power
    code   = select(power == 0, 14, select(below >= 0 and below < 14, below, 15))
    place  = first(8, code == 15)
    escape = gather(power, place)
  }
  decompress {
    let power = select(code == 14, 0, select(code == 15, scatter(place, escape), base - code))
    yield from_bits(((mantissa & 128) << 24) | (power << 23) | ((mantissa & 127) << 16))
  }
  claim abs(x - decompressed) <= 0
}
