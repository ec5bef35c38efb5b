# ZFP-style fixed rate in one dimension: blocks of 4 under a power of two, zfp's lifted transform, 6 bits a coefficient in planes of 4 and 2.
# 8 bits a value. For smooth data such as fields of a simulation; on gradients int8 is six times as exact.
compressor zfp8(group: int = 4) {
  wire {
    low   : u4[group]
    high  : u2[group]
    scale : e8m0
  }
  nonfinite scale
  compress(x) {
    scale = ldexp(1, exponent(max(abs(x))) - 4)
    let y = whole(x / scale)
    let a1 = 0.5 * (at(y, 0) + at(y, 3))
    let d1 = at(y, 3) - a1
    let c1 = 0.5 * (at(y, 2) + at(y, 1))
    let b1 = at(y, 1) - c1
    let a = 0.5 * (a1 + c1)
    let c = c1 - a
    let d2 = 0.5 * (d1 + b1)
    let b2 = b1 - d2
    let d = d2 + 0.5 * b2
    let b = b2 - 0.5 * d
    let code = quantize(put(put(put(put(y, 0, a), 1, b), 2, c), 3, d), -32, 31) + 32
    low  = plane(code, 0, 4)
    high = plane(code, 4, 2)
  }
  decompress {
    let q = (low + (high << 4) - 32) * 1.0
    let b1 = at(q, 1) + 0.5 * at(q, 3)
    let d1 = at(q, 3) - 0.5 * b1
    let b2 = b1 + d1
    let d2 = 2 * d1 - b2
    let c1 = at(q, 2) + at(q, 0)
    let a1 = 2 * at(q, 0) - c1
    let b = b2 + c1
    let c = 2 * c1 - b
    let d = d2 + a1
    let a = 2 * a1 - d
    yield put(put(put(put(q, 0, a), 1, b), 2, c), 3, d) * scale
  }
  claim abs(x - decompressed) <= 3.75 * scale + 16 * tiny
}
