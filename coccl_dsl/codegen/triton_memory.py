"""Helpers that generated Triton kernels import for memory: tensors, and the runs of a frame's fields, packed and unpacked.

triton_lib.py says what the shapes and the arguments are.
"""

# Constants of a Triton function are annotated tl.constexpr, which to a type checker is not the number that it stands for.
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from .triton_lib import columns, nearest, to_bits16


@triton.constexpr_function
def _divisor(step: int) -> int:
    """The largest power of two up to 16 that divides `step`: what a run's address plus whole tiles is a multiple of."""
    return min(16, step & -step)


@triton.constexpr_function
def _bias(bits: int) -> int:
    """Half the range of a code at every place of a 32-bit word, as an int32."""
    word = sum((1 << bits - 1) << i for i in range(0, 32, bits))
    return word - (1 << 32)


@triton.jit
def load_flat(pointer, left, TILE: tl.constexpr, FULL: tl.constexpr, OWN: tl.constexpr = 0):
    """float32[TILE] from a pointer to float32, bfloat16 or float16; 0.0 beyond `left`.

    OWN: each thread gets up to so many elements in a row, by up to four loads of 16 bytes, so that it works on few groups and knows most of
    each.
    """
    EACH: tl.constexpr = 128 // pointer.dtype.element_ty.primitive_bitwidth
    ROW: tl.constexpr = min(OWN, 4 * EACH)
    if FULL and ROW > EACH:
        thread = tl.arange(0, TILE // ROW)[:, None, None] * ROW
        run = tl.arange(0, ROW // EACH)[None, :, None] * EACH
        v = tl.load(pointer + (thread + run + tl.arange(0, EACH)[None, None, :])).to(tl.float32)
        return tl.reshape(v, (TILE,))
    index = tl.arange(0, TILE)
    if FULL:
        return tl.load(pointer + index).to(tl.float32)
    else:
        return tl.load(pointer + index, mask=index < left, other=0.0).to(tl.float32)


@triton.jit
def store_flat(pointer, v, left, FULL: tl.constexpr):
    """Store float32[TILE] as float32, bfloat16 or float16: nearest even, finite values saturate, canonical NaN."""
    index = tl.arange(0, v.shape[0])
    if pointer.dtype.element_ty == tl.float32:
        v = nearest(v, "f32")
    elif pointer.dtype.element_ty == tl.bfloat16:
        v = to_bits16(v, "bf16").to(tl.bfloat16, bitcast=True)
    else:
        v = to_bits16(v, "f16").to(tl.float16, bitcast=True)
    if FULL:
        tl.store(pointer + index, v)
    else:
        tl.store(pointer + index, v, mask=index < left)


@triton.jit
def element(pointer, index, ALIGNED: tl.constexpr):
    """Pointer to an element of the user's tensor; ALIGNED promises 16 bytes."""
    pointer = pointer + index
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def copy(source, target, length, program, step, TILE: tl.constexpr):
    """Copy `length` elements as they are, bit for bit; program number `program` of `step` takes every step-th tile."""
    index = tl.arange(0, TILE)
    first = program * TILE
    while first < length:
        here, there, left = source + first, target + first, length - first
        if left >= TILE:
            tl.store(there + index, tl.load(here + index))
        else:
            # Few values at a time: masks on a whole tile would take all registers.
            few = tl.arange(0, 128)
            done = left - left
            while done < left:
                inside = few < left - done
                tl.store(there + done + few, tl.load(here + done + few, mask=inside), mask=inside)
                done += 128
        first += step * TILE


@triton.jit
def place(address, DTYPE: tl.constexpr, STEP: tl.constexpr):
    """Pointer to a tile of a run: 16-byte aligned where the run is, plus whole tiles of STEP bytes."""
    return tl.multiple_of(address.to(tl.pointer_type(DTYPE)), _divisor(STEP))


@triton.jit
def _pack(code, BITS: tl.constexpr, SIGNED: tl.constexpr, UNIT: tl.constexpr):
    """int32 [G * P * BITS / UNIT], or as wide as they are: codes, low bits first, in words of UNIT bits.

    A word is the wrapping sum of its codes, each shifted to its place: one instruction a code. A bias makes signed codes positive before the
    sum, and comes off by the last xor.
    """
    EACH: tl.constexpr = UNIT // BITS
    if EACH > 1:
        lanes = tl.reshape(code, (code.shape[0] * code.shape[1] // EACH, EACH))
        word = tl.sum(lanes << (tl.arange(0, EACH) * BITS)[None, :], 1)
        if SIGNED:
            word = (word + _bias(BITS)) ^ _bias(BITS)
        return word
    else:
        return tl.reshape(code, (code.shape[0] * code.shape[1],))


@triton.jit
def store_codes(
    address,
    code,
    left,
    LENGTH: tl.constexpr,
    BITS: tl.constexpr,
    SIGNED: tl.constexpr,
    FULL: tl.constexpr,
):
    """Store int32 [G, P], LENGTH values a group of BITS bits, low bits first; `left` groups exist. Codes fit their bits.

    Whole tiles go out as 32-bit words. int8 codes are stored as they are, and so are the words of a whole tile where `code` is these.
    """
    if len(code.shape) == 1:
        tl.store(place(address, tl.int32, code.shape[0] * 4) + tl.arange(0, code.shape[0]), code)
    else:
        G: tl.constexpr = code.shape[0]
        P: tl.constexpr = code.shape[1]
        STEP: tl.constexpr = G * LENGTH * BITS // 8
        WORDS: tl.constexpr = FULL and LENGTH == P and STEP % 4 == 0 and code.dtype == tl.int32
        UNIT: tl.constexpr = BITS if BITS >= 16 else (32 if WORDS else 8)
        EACH: tl.constexpr = UNIT // BITS
        word = _pack(code, BITS, SIGNED, UNIT)
        if UNIT == 32:
            pointer = place(address, tl.int32, STEP)
        elif UNIT == 16:
            pointer = place(address, tl.int16, STEP)
            word = word.to(tl.int16)
        else:
            pointer = place(address, tl.int8, STEP)
            word = word.to(tl.int8)
        if FULL and LENGTH == P:
            tl.store(pointer + tl.arange(0, G * P // EACH), word)
        else:
            unit = columns(P // EACH)
            row = tl.arange(0, G)[:, None]
            exists = (row < left) & (unit < LENGTH // EACH)
            tl.store(pointer + (row * (LENGTH // EACH) + unit), tl.reshape(word, (G, P // EACH)), mask=exists)


@triton.jit
def load_codes(
    address,
    left,
    G: tl.constexpr,
    P: tl.constexpr,
    LENGTH: tl.constexpr,
    BITS: tl.constexpr,
    SIGNED: tl.constexpr,
    FULL: tl.constexpr,
):
    """int32 [G, P] of a run of LENGTH values a group; 0 where there are none."""
    STEP: tl.constexpr = G * LENGTH * BITS // 8
    UNIT: tl.constexpr = BITS if BITS >= 16 else (32 if FULL and LENGTH == P and STEP % 4 == 0 else 8)
    EACH: tl.constexpr = UNIT // BITS
    if UNIT == 32:
        pointer = place(address, tl.int32, STEP)
    elif UNIT == 16:
        pointer = place(address, tl.int16, STEP)
    else:
        pointer = place(address, tl.int8, STEP)
    if FULL and LENGTH == P:
        word = tl.load(pointer + tl.arange(0, G * P // EACH)).to(tl.int32)
    else:
        unit = columns(P // EACH)
        row = tl.arange(0, G)[:, None]
        exists = (row < left) & (unit < LENGTH // EACH)
        word = tl.load(pointer + (row * (LENGTH // EACH) + unit), mask=exists, other=0).to(tl.int32)
        word = tl.reshape(word, (G * P // EACH,))
    if BITS < 32:
        # To the top, then down again with the sign or without it.
        code = word[:, None] << (32 - BITS - tl.arange(0, EACH) * BITS)[None, :]
        if SIGNED:
            code = code >> (32 - BITS)
        else:
            code = (code.to(tl.uint32, bitcast=True) >> (32 - BITS)).to(tl.int32, bitcast=True)
        return tl.reshape(code, (G, P))
    else:
        return tl.reshape(word, (G, P))


@triton.jit
def store_values(address, code, left, BITS: tl.constexpr, FULL: tl.constexpr):
    """Store one value a group (int32 [G], low bits); `left` groups exist."""
    G: tl.constexpr = code.shape[0]
    DTYPE: tl.constexpr = tl.int32 if BITS == 32 else (tl.int16 if BITS == 16 else tl.int8)
    pointer = place(address, DTYPE, G * BITS // 8) + tl.arange(0, G)
    if FULL:
        tl.store(pointer, code.to(DTYPE))
    else:
        tl.store(pointer, code.to(DTYPE), mask=tl.arange(0, G) < left)


@triton.jit
def load_values(address, left, G: tl.constexpr, BITS: tl.constexpr, SIGNED: tl.constexpr, FULL: tl.constexpr):
    """int32 [G], one value a group; 0 where there is no group."""
    DTYPE: tl.constexpr = tl.int32 if BITS == 32 else (tl.int16 if BITS == 16 else tl.int8)
    pointer = place(address, DTYPE, G * BITS // 8) + tl.arange(0, G)
    if FULL:
        code = tl.load(pointer).to(tl.int32)
    else:
        code = tl.load(pointer, mask=tl.arange(0, G) < left, other=0).to(tl.int32)
    if BITS < 32 and not SIGNED:
        code = code & ((1 << BITS) - 1)
    return code


@triton.jit
def store_value(address, code, BITS: tl.constexpr):
    """Store one value a frame (an int32 scalar, low bits)."""
    DTYPE: tl.constexpr = tl.int32 if BITS == 32 else (tl.int16 if BITS == 16 else tl.int8)
    tl.store(address.to(tl.pointer_type(DTYPE)), code.to(DTYPE))


@triton.jit
def load_value(address, BITS: tl.constexpr, SIGNED: tl.constexpr):
    """One value a frame, an int32 scalar."""
    DTYPE: tl.constexpr = tl.int32 if BITS == 32 else (tl.int16 if BITS == 16 else tl.int8)
    code = tl.load(address.to(tl.pointer_type(DTYPE))).to(tl.int32)
    if BITS < 32 and not SIGNED:
        code = code & ((1 << BITS) - 1)
    return code
