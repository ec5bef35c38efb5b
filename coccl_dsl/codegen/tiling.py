"""How the elements of a Fold are cut into tiles, and over the threads of one. Nothing here imports triton."""

from __future__ import annotations

from dataclasses import dataclass

from ..plan.ops import Signature
from ..wire.codec import FRAME, Codec, walk
from .patterns import asks_of_input, roots_of

# Elements of a whole tile, of a small one, and of a warp in a whole one: small tiles start
# the link early; see benchmarks/results/nvlink.json.
TILE = 2048
SMALL = 1024
WARP = 1024


@dataclass(frozen=True)
class Tiling:
    """tile: elements of a whole tile; small: of the tiles that cut what is left; warps, registers: `num_warps` and `maxnreg` at launch, where
    0 is no bound."""

    tile: int
    small: int
    warps: int
    registers: int = 0

    def programs(self, length: int) -> int:
        """How many programs a piece of `length` elements takes."""
        return length // self.tile - (-(length % self.tile) // self.small)


def codecs_of(signature: Signature, codecs: dict[str, Codec]) -> tuple[Codec | None, Codec | None]:
    """The out codec and the in codec."""
    out = codecs[signature.out_codec] if signature.out_codec else None
    return out, codecs[signature.in_codec] if signature.in_codec else None


def reads_words(signature: Signature, codecs: dict[str, Codec], factor: bool) -> bool:
    """Whether what is compressed is the input as it lies in memory, and something is asked of it that its words tell (triton_pairs.py)."""
    out, opened = codecs_of(signature, codecs)
    if out is None or opened is not None or factor or signature.dense != (("input", 0),):
        return False
    return signature.basis <= 1 and out.basis <= 1 and out.group >= 4 and asks_of_input(out)


def tiling(signature: Signature, codecs: dict[str, Codec], words: bool = False) -> Tiling:
    """Tiles are multiples of every group and Hadamard block, with 32 to 64 elements a thread in whole ones.

    words: the kernel keeps its input as pairs of 16-bit values. A frame then takes half a multiprocessor's registers, if told to: one
    program computes while another one's frame is on its way.
    """
    out, opened = codecs_of(signature, codecs)
    if out is not None and out.has_frame_fields:
        return Tiling(FRAME, FRAME, 16, 64) if words else Tiling(FRAME, FRAME, 32)
    bases = [signature.basis, *(b for _, b in signature.dense), *(b for _, b, _ in signature.sinks)]
    least = max([c.group for c in (out, opened) if c] + bases)
    tile = max(TILE, least)
    return Tiling(tile, max(SMALL, least), max(2, min(16, tile // WARP)))


def owned(codec: Codec | None) -> int:
    """Elements in a row that a thread holds, so that its codes are 16 bytes in a row; 0 where it does not matter, or where groups are longer
    than a few threads' rows, or states, which are read in the usual order, would have to be moved."""
    if codec is None or codec.group > 256 or codec.stateful:
        return 0
    bits = [f.bits for f in codec.fields if f.per == "array"]
    return min(32, 128 // max(bits)) if bits and max(bits) <= 8 else 0


def spread(codec: Codec) -> int:
    """The longest run of elements that are summed or rotated when `codec` compresses, where it is more than a thread has in a row, else 0."""
    sums = [n.args[0].length for n in walk(roots_of(codec)) if n.op == "rsum"]
    turns = [n.attr[0] for n in walk(roots_of(codec)) if n.op == "hadamard"]
    longest = max([*sums, *turns], default=0)
    return longest if longest > 32 and longest & (longest - 1) == 0 else 0
