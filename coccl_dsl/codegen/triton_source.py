"""One readable Triton kernel a Fold signature, as text. Nothing here imports triton.

A launch runs a grid of tiles of the longest piece times folds, the folds in turn, so that all peers are served at once. Each fold is a row of the **segment table**, int64 in device memory:

    0 length   elements of the piece
    1 start    index in the chunk of the piece's first element
    2 key      value number for stochastic rounding
    3 wires    how many wires it opens
    4 places   how many places its wire goes to
    then       a dense source each: element offset into x, or address of a float32 scratch
               a sink each: element offset into y, or address
               a state of the out codec each: address of the current values, of the next ones
               a flag of the out codec each: index of its counter
    then       an entry an opened wire: its address, then for each state of the in codec current and next
    then       a place each: its address

Counts of wires and places differ from row to row; all rows of a launch have room for the largest, so that `row_size` and `places_at` (the
column of the first place) are arguments, and an address is one load away from its row. Thus one kernel serves any world size. Variants, as
constants: LOOP for launches of fewer programs than tiles, ONE_WIRE, ONE_PLACE for launches whose folds open one wire, or write one place, each (no loops, which lets Triton lay values out as
the wire is and takes fewer registers), COPIES for launches with rows that only copy x to y as it is (places is -1; the first place is the
offset into y), and ALIGNED, which promises that x and y are 16-byte aligned wherever the table's offsets point.

A tile is elements of one frame, and whole tiles (FULL) take no masks. What is left of a piece after its whole tiles is cut into small ones,
each with a program of its own: masks take registers, and many values a thread besides would slow the whole tiles, which share the kernel.
A codec that has fields a frame is closed by one program a frame, which then holds all that the statistics need.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from ..plan.ops import Signature
from ..wire.codec import FRAME, TYPES, Codec, Field, Node, walk
from ..wire.layout import ALIGN, frame_bytes
from .patterns import fits
from .tiling import Tiling, codecs_of, owned, reads_words, spread, tiling
from .triton_graph import Printer
from .triton_names import width

HEADER = """import triton
import triton.language as tl

from coccl_dsl.codegen import triton_groups as groups
from coccl_dsl.codegen import triton_lib as lib
from coccl_dsl.codegen import triton_memory as memory
from coccl_dsl.codegen import triton_pairs as pairs
"""
VARIANTS = ("ALIGNED", "ONE_WIRE", "ONE_PLACE", "LOOP", "COPIES")
ARGUMENTS = ("x", "y", "table", "folds", "row_size", "places_at", "factor", "rng", "version", "flags")
FIXED = 5

_CONSTANTS = ", ".join(f"{name}: tl.constexpr" for name in VARIANTS)
_STATE_DTYPES = {"f32": "tl.float32", "bf16": "tl.bfloat16", "f16": "tl.float16"}


@dataclass(frozen=True)
class KernelSource:
    """A kernel: `text` follows HEADER in a module."""

    name: str
    text: str
    tiling: Tiling


@dataclass(frozen=True)
class Row:
    """Columns of a signature's segment table. `states` are the out codec's, `entry` is the length of an opened wire's entry."""

    dense: int
    sinks: int
    states: tuple[str, ...]
    flags: tuple[str, ...]
    in_states: tuple[str, ...]

    @property
    def dense_at(self) -> int:
        return FIXED

    @property
    def sinks_at(self) -> int:
        return self.dense_at + self.dense

    @property
    def states_at(self) -> int:
        return self.sinks_at + self.sinks

    @property
    def flags_at(self) -> int:
        return self.states_at + 2 * len(self.states)

    @property
    def wires_at(self) -> int:
        return self.flags_at + len(self.flags)

    @property
    def entry(self) -> int:
        return 1 + 2 * len(self.in_states)


def row_of(signature: Signature, codecs: dict[str, Codec]) -> Row:
    """Which columns the segment table of a signature has."""
    out, opened = codecs_of(signature, codecs)
    return Row(
        len(signature.dense),
        len(signature.sinks),
        tuple(s.name for s in out.states) if out else (),
        tuple(out.flags) if out else (),
        tuple(s.name for s in opened.states if s.scope == "both") if opened else (),
    )


def kernel_key(signature: Signature, dtype: str, codecs: dict[str, Codec], factor: bool) -> str:
    """What decides a kernel's text, cheap to make: by it a back end finds kernels of a generated module."""
    names = [c.name if c else "" for c in codecs_of(signature, codecs)]
    return "|".join(
        [
            str(signature),
            str(signature.basis),
            str(signature.update_in),
            str(signature.wire),
            dtype,
            *names,
            "factor" * factor,
        ]
    )


def kernel_source(signature: Signature, dtype: str, codecs: dict[str, Codec], factor: bool) -> KernelSource:
    """The kernel of a signature for tensors of `dtype` (f32, bf16, f16). factor: the op multiplies what it reads of the input.

    Raises NotImplementedError, naming the operation, where a codec uses one that cannot be generated.
    """
    shape = tiling(signature, codecs)
    text = _Kernel(signature, codecs, factor, shape).text(_Kernel._entry)
    name = f"fold_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return KernelSource(name, text.replace("FOLD", name), shape)


def span_text(signature: Signature, codecs: dict[str, Codec], factor: bool, shape: Tiling) -> str:
    """The functions of a signature, for a kernel that runs several: FOLD_span does a program's tiles of one row."""
    return _Kernel(signature, codecs, factor, shape).text(_Kernel._span)


class _Lines:
    """Text with indentation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def add(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line if line else "" for line in lines]

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


class _Kernel:
    def __init__(self, signature: Signature, codecs: dict[str, Codec], factor: bool, tiling: Tiling):
        self.s, self.factor, self.tiling = signature, factor, tiling
        self.out, self.opened = codecs_of(signature, codecs)
        self.row = row_of(signature, codecs)
        self.own = owned(self.out or self.opened)
        self.words = reads_words(signature, codecs, factor)
        self.o = _Lines()

    def text(self, end: Callable[[_Kernel], None]) -> str:
        if self.opened is not None:
            self._open(self.opened)
        self._tile()
        end(self)
        return self.o.text()

    # ------------------------------------------------------------ opening a wire

    def _open(self, codec: Codec) -> None:
        o, groups = self.o, f"TILE // {codec.group}"
        o.add(
            "@triton.jit",
            "def FOLD_open(entry, first, length, version, flags, TILE: tl.constexpr, FULL: tl.constexpr):",
        )
        o.depth += 1
        o.add(
            f'"""One tile of {codec.name}, opened: float32[TILE]'
            + (f' in basis h{self.s.basis}."""' if self.s.basis else '."""')
        )
        self._frame(codec, "tl.load(entry)", "wire")
        leaves: dict[tuple[str, str], str] = {("live", ""): "live", ("left", ""): "left"}
        printer = Printer(codec, groups, leaves)
        self._live(codec)
        for f in codec.fields:
            leaves["field", f.name] = self._read_field(codec, f, printer)
        kept = self.row.in_states
        updates = [codec.receiver_updates[name] for name in kept] if self.s.update_in else []
        for i, name in enumerate(kept):
            if _reads(name, [codec.decompress, *updates]) or (codec.versioned and updates):
                leaves["state", name] = self._read_state(codec, name, f"tl.load(entry + {1 + 2 * i})", printer)
        self._print(printer, codec.decompress, "decompressed")
        value = printer.value(codec.decompress)
        if codec.versioned:
            value = self._check_version(codec, value, printer)
        if self.s.update_in:
            for i, name in enumerate(kept):
                new = self._print(printer, codec.receiver_updates[name], f"next_{name}")
                if codec.versioned:
                    new = f"tl.where(current, {new}, {leaves['state', name]})"
                self._write_state(codec, name, f"tl.load(entry + {2 + 2 * i})", new)
        o.add(f"opened = tl.reshape({value}, [TILE])")
        self._rebase("opened", codec.basis, self.s.basis)
        o.add("return opened")
        o.depth -= 1
        o.add("", "")

    def _print(self, printer: Printer, node: Node, name: str) -> str:
        """Print a graph into the kernel."""
        value = printer.value(node, name)
        self.o.add(*printer.lines)
        printer.lines.clear()
        return value

    def _frame(self, codec: Codec, address: str, name: str) -> None:
        """Where this tile's frame lies, and which groups of it exist."""
        o, per_frame = self.o, FRAME // codec.group
        o.add(f"frame = first // {FRAME}", f"group = first % {FRAME} // {codec.group}")
        o.add(f"live_length = {self._live_length(codec.basis)}")
        o.add(
            f"in_frame = tl.minimum({per_frame}, (live_length - frame * {FRAME} + {codec.group - 1}) // {codec.group})"
        )
        o.add("existing = in_frame - group")
        self._runs(codec)
        if address:
            o.add(f"{name} = {address} + frame * {frame_bytes(codec)}")

    def _runs(self, codec: Codec) -> None:
        """Offsets of a frame's runs: they depend on how many groups the frame has."""
        offset = "0"
        sizes: list[tuple[str, str]] = []
        for f in codec.fields:
            per_group = f.length * f.bits // 8 if f.per == "array" else f.bits // 8
            size = f"in_frame * {per_group}" if f.per != "frame" else str(f.bits // 8)
            sizes.append((_run(f.name), size))
        if codec.versioned:
            sizes.append((_run("version"), "4"))
        for i, (name, size) in enumerate(sizes):
            self.o.add(f"{name} = {offset}")
            if i + 1 < len(sizes):
                offset = f"{name} + lib.round_up({size}, {ALIGN})"

    def _live_length(self, basis: int) -> str:
        return f"lib.round_up(length, {basis})" if basis > 1 else "length"

    def _live(self, codec: Codec) -> None:
        self.o.add("left = live_length - first")
        self.o.add(f"live = groups.inside(left, TILE // {codec.group}, {codec.group})")

    def _read_field(self, codec: Codec, f: Field, printer: Printer) -> str:
        o, groups = self.o, f"TILE // {codec.group}"
        signed = f.type[0] == "s"
        name = printer.fresh(f.name)
        at = f"wire + {_run(f.name)}"
        if f.per == "array":
            step = f.length * f.bits // 8
            load = f"memory.load_codes({at} + group * {step}, existing, {groups}, {width(f.length)}, {f.length}, {f.bits}, {signed}, FULL)"
        elif f.per == "group":
            load = f"memory.load_values({at} + group * {f.bits // 8}, existing, {groups}, {f.bits}, {signed}, FULL)"
        else:
            load = f"memory.load_value({at}, {f.bits}, {signed})"
        o.add(f"{name} = {load}" if f.integer else f'{name} = lib.decode({load}, "{f.type}")')
        return name

    def _state_place(self, codec: Codec, name: str, address: str) -> tuple[str, int]:
        dtype = next(s.dtype for s in codec.states if s.name == name)
        size = TYPES[dtype][0] // 8
        return f"memory.place({address} + first * {size}, {_STATE_DTYPES[dtype]}, {size} * TILE)", size

    def _read_state(self, codec: Codec, name: str, address: str, printer: Printer) -> str:
        kept = printer.fresh(name)
        place, _ = self._state_place(codec, name, address)
        shape = f"[TILE // {codec.group}, {codec.group}]"
        self.o.add(f"{kept} = tl.reshape(memory.load_flat({place}, left, TILE, FULL), {shape})")
        return kept

    def _write_state(self, codec: Codec, name: str, address: str, value: str) -> None:
        """Whole groups are written, zeros where no element is."""
        place, _ = self._state_place(codec, name, address)
        flat = f"tl.reshape({value} if FULL else tl.where(live, {value}, 0.0), [TILE])"
        self.o.add(f"memory.store_flat({place}, {flat}, lib.round_up(left, {codec.group}), FULL)")

    def _check_version(self, codec: Codec, value: str, printer: Printer) -> str:
        """A frame of another version opens as NaN; its first tile counts it."""
        o = self.o
        o.add(f"sent = memory.load_value(wire + {_run('version')}, 32, True)")
        o.add("current = sent == tl.load(version)")
        o.add("tl.atomic_add(flags, 1, mask=(group == 0) & (sent != tl.load(version)))")
        name = printer.fresh("checked")
        o.add(f'{name} = tl.where(current, {value}, float("nan"))')
        return name

    # ------------------------------------------------------------ one tile

    def _rebase(self, name: str, own: int, wanted: int) -> None:
        """Bring the flat values `name` from one basis into another; 0 is none. Padding of a short last block is zero."""
        own, wanted = (b if b > 1 else 0 for b in (own, wanted))
        if own == wanted:
            return
        if own:
            self.o.add(f"{name} = groups.hadamard({name}, {own})")
        if wanted:
            self.o.add(f"{name} = {name} if FULL else tl.where(tl.arange(0, TILE) < length - first, {name}, 0.0)")
            self.o.add(f"{name} = groups.hadamard({name}, {wanted})")

    def _tile(self) -> None:
        o = self.o
        arguments = ", ".join(a for a in ARGUMENTS if a not in ("table", "folds", "row_size"))
        o.add(
            "@triton.jit",
            f"def FOLD_tile(row, first, length, {arguments}, {_CONSTANTS}, TILE: tl.constexpr, FULL: tl.constexpr):",
        )
        o.depth += 1
        self._sources()
        if self.out is not None:
            self._close(self.out)
        self._sinks()
        o.depth -= 1
        o.add("", "")

    def _sources(self) -> None:
        o = self.o
        for i, (role, basis) in enumerate(self.s.dense):
            name = "total" if i == 0 else "more"
            column = self.row.dense_at + i
            if role == "input":
                o.add(f"source = memory.element(x, tl.load(row + {column}) + first, ALIGNED)")
            else:
                o.add(f"source = memory.place(tl.load(row + {column}) + first * 4, tl.float32, 4 * TILE)")
            load = f"source, {self._live_length(basis)} - first, TILE, FULL"
            if self.words:
                block = spread(self.out) if self.out is not None and self.own else 0
                own = f", 32, {block}" if block else f", {self.own}" if self.own else ""
                o.add(f"words = pairs.load({load}, ALIGNED{own})", f"{name} = pairs.values(words)")
            else:
                o.add(f"{name} = memory.load_flat({load}{f', {self.own}' if self.own else ''})")
            if role == "input" and self.factor:
                o.add(f"{name} = {name} * factor")
            self._rebase(name, basis, self.s.basis)
            if i:
                o.add("total = total + more")
        if self.opened is None:
            return
        open_wire = "FOLD_open(row + {}, first, length, version, flags, TILE, FULL)"
        first = open_wire.format(self.row.wires_at)
        o.add(f"total = total + {first}" if self.s.dense else f"total = {first}")
        o.add("if not ONE_WIRE:")
        o.depth += 1
        o.add("wires = tl.load(row + 3)", "i = tl.full([], 1, tl.int64)", "while i < wires:")
        o.depth += 1
        o.add(f"total = total + {open_wire.format(f'{self.row.wires_at} + i * {self.row.entry}')}", "i += 1")
        o.depth -= 2

    def _close(self, codec: Codec) -> None:
        """Compress the sum; what the wire says is then in `opened`."""
        o, groups, group = self.o, f"TILE // {codec.group}", codec.group
        o.add("", f"# {codec.name}")
        self._frame(codec, "", "")
        self._live(codec)
        o.add("closing = total")
        self._rebase("closing", self.s.basis, codec.basis)
        o.add(f"closing = tl.reshape(closing, [{groups}, {group}])")
        leaves: dict[tuple[str, str], str] = {("live", ""): "live", ("left", ""): "left", ("x", ""): "v"}
        exists, words = f"tl.arange(0, {groups}) < existing", "words" if self.words else ""
        printer = Printer(codec, groups, leaves, exists, words)
        o.add(f"{printer.fresh('v')} = closing if FULL else tl.where(live, closing, 0.0)")
        roots = [*codec.compress.values(), codec.reopened, *codec.sender_updates.values(), *codec.flags.values()]
        for i, name in enumerate(self.row.states):
            if _reads(name, roots):
                address = f"tl.load(row + {self.row.states_at + 2 * i})"
                leaves["state", name] = self._read_state(codec, name, address, printer)
        for stream in sorted({n.attr[0] for n in walk(roots) if n.op == "uniform"}):
            draws = printer.fresh("draws")
            first = "tl.load(row + 1) + first"
            o.add(f"{draws} = groups.uniform(rng, tl.load(row + 2), {first}, {stream}, TILE)")
            o.add(f"{draws} = tl.reshape({draws}, [{groups}, {group}])")
            leaves["uniform", str(stream)] = draws
        stored: dict[str, str] = {}
        for f in sorted(codec.fields, key=lambda f: ("frame", "group", "array").index(f.per)):
            stored[f.name] = self._print(printer, codec.compress[f.name], f.name)
        if self.s.wire:
            codes = {f.name: self._encoded(codec, f, stored[f.name], printer) for f in codec.fields}
            self._store_wire(codec, codes)
        if any(opened for _, _, opened in self.s.sinks):
            value = self._print(printer, codec.reopened, "opened_groups")
            o.add(f"opened = tl.reshape({value}, [TILE])")
        for i, name in enumerate(self.row.states):
            if name in codec.sender_updates:
                new = self._print(printer, codec.sender_updates[name], f"next_{name}")
                self._write_state(codec, name, f"tl.load(row + {self.row.states_at + 2 * i + 1})", new)
        for i, name in enumerate(self.row.flags):
            flag = self._print(printer, codec.flags[name], name)
            count = f"tl.sum(({flag} & (tl.arange(0, {groups}) < existing)).to(tl.int32), 0)"
            o.add(f"tl.atomic_add(flags + tl.load(row + {self.row.flags_at + i}), {count})")

    def _encoded(self, codec: Codec, f: Field, value: str, printer: Printer) -> str:
        """The integers that a field's run holds."""
        node = codec.compress[f.name]
        if node.op == "const":
            value = f"tl.full([], {value}, tl.{'float32' if node.kind == 'f32' else 'int32'})"
        if f.per == "group" and node.scope != "group":
            value = f"tl.full([TILE // {codec.group}], {value}, tl.{'float32' if node.kind == 'f32' else 'int32'})"
        code = printer.fresh(f"{f.name}_bits")
        if f.per == "array" and id(node) in printer.unrounded:
            source, kind = printer.unrounded[id(node)]
            function = "nearest_bits" if f.bits == 8 else "nearest_words"
            self.o.add(f"{code} = lib.{function}({source}, {kind}{', FULL=FULL' if f.bits < 8 else ''})")
            return code
        if (
            f.per == "array"
            and f.bits in (4, 8)
            and f.integer
            and id(node) in printer.spanned
            and fits(node, f.bits, False)
        ):
            self.o.add(
                f"{code} = lib.quantize_words({printer.spanned[id(node)]}, {node.args[2].value}, {f.bits}, FULL)"
            )
            return code
        bits = printer.bits(node) if f.per == "group" and f.type == "e4m3" else None
        if bits is not None:
            return bits
        if not f.integer and f.type == "f16" and f.per == "array":
            self.o.add(f'{code} = lib.to_bits16({value}, "f16")')
        elif not f.integer:
            self.o.add(f'{code} = lib.encode({value}, "{f.type}")')
        elif f.bits < 16 and f.per == "array" and not fits(node, f.bits, f.type[0] == "s"):
            self.o.add(f"{code} = lib.wrap({value}, {f.bits}, {f.type[0] == 's'})")
        else:
            return value
        return code

    def _store_wire(self, codec: Codec, codes: dict[str, str]) -> None:
        o = self.o
        o.add("if ONE_PLACE:")
        o.depth += 1
        self._store_place(codec, codes, "row + places_at")
        o.depth -= 1
        o.add("else:")
        o.depth += 1
        o.add("places = tl.load(row + 4)", "i = tl.full([], 0, tl.int64)", "while i < places:")
        o.depth += 1
        self._store_place(codec, codes, "row + places_at + i")
        o.add("i += 1")
        o.depth -= 2

    def _store_place(self, codec: Codec, codes: dict[str, str], column: str) -> None:
        o = self.o
        o.add(f"place = tl.load({column}) + frame * {frame_bytes(codec)}")
        for f in codec.fields:
            at = f"place + {_run(f.name)}"
            if f.per == "array":
                at = f"{at} + group * {f.length * f.bits // 8}"
                shape = f"{f.length}, {f.bits}, {f.type[0] == 's'}"
                o.add(f"memory.store_codes({at}, {codes[f.name]}, existing, {shape}, FULL)")
            elif f.per == "group":
                at = f"{at} + group * {f.bits // 8}"
                o.add(f"memory.store_values({at}, {codes[f.name]}, existing, {f.bits}, FULL)")
            else:
                o.add(f"memory.store_value({at}, {codes[f.name]}, {f.bits})")
        if codec.versioned:
            o.add("if group == 0:", f"    memory.store_value(place + {_run('version')}, tl.load(version), 32)")

    def _sinks(self) -> None:
        o = self.o
        if self.s.sinks:
            o.add("")
        for i, (role, basis, opened) in enumerate(self.s.sinks):
            own = self.out.basis if opened and self.out is not None else self.s.basis
            o.add(f"result = {'opened' if opened and self.out is not None else 'total'}")
            self._rebase("result", own, basis)
            column = self.row.sinks_at + i
            if role == "output":
                o.add(f"sink = memory.element(y, tl.load(row + {column}) + first, ALIGNED)", "left = length - first")
            else:
                o.add(f"sink = memory.place(tl.load(row + {column}) + first * 4, tl.float32, 4 * TILE)")
                o.add(f"left = {self._live_length(basis)} - first")
            o.add("memory.store_flat(sink, result, left, FULL)")

    # ------------------------------------------------------------ the kernel

    def _span(self) -> None:
        o = self.o
        arguments = ", ".join(a for a in ARGUMENTS if a not in ("table", "folds", "row_size"))
        constants = ", ".join(VARIANTS)
        o.add(
            "@triton.jit",
            f"def FOLD_span(row, program, step, {arguments}, {_CONSTANTS}, TILE: tl.constexpr, SMALL: tl.constexpr):",
        )
        o.depth += 1
        o.add("length = tl.load(row)", "if COPIES:", "    if tl.load(row + 4) < 0:")
        o.add("        source = memory.element(x, tl.load(row + 5), ALIGNED)")
        o.add("        target = memory.element(y, tl.load(row + places_at), ALIGNED)")
        o.add("        memory.copy(source, target, length, program, step, TILE)", "        length = length - length")
        o.add("whole = length // TILE", "while program < whole:")
        o.add(f"    FOLD_tile(row, program * TILE, length, {arguments}, {constants}, TILE, True)")
        o.add("    program += step", "first = whole * TILE + (program - whole) * SMALL", "while first < length:")
        o.add(f"    FOLD_tile(row, first, length, {arguments}, {constants}, SMALL, False)", "    first += step * SMALL")
        o.depth -= 1
        o.add("", "")

    def _entry(self) -> None:
        o = self.o
        names = ", ".join(f'"{a}"' for a in ARGUMENTS)
        o.add(f"@triton.jit(do_not_specialize=[{names}], do_not_specialize_on_alignment=[{names}])")
        o.add(f"def FOLD({', '.join(ARGUMENTS)}, {_CONSTANTS}):")
        o.depth += 1
        o.add(f'"""{self.s}"""')
        o.add(
            "program = tl.program_id(0).to(tl.int64) // folds",
            "row = table + tl.program_id(0).to(tl.int64) % folds * row_size",
        )
        o.add("step = tl.num_programs(0) // folds", "length = tl.load(row)")
        arguments = ", ".join(a for a in ARGUMENTS if a not in ("table", "folds", "row_size"))
        constants = ", ".join(VARIANTS)
        tile, small = self.tiling.tile, self.tiling.small
        o.add("if COPIES:", "    if tl.load(row + 4) < 0:")
        o.add("        source = memory.element(x, tl.load(row + 5), ALIGNED)")
        o.add("        target = memory.element(y, tl.load(row + places_at), ALIGNED)")
        o.add(f"        memory.copy(source, target, length, program, step, {tile})", "        return")
        o.add(f"whole = length // {tile}")
        full = f"FOLD_tile(row, program * {tile}, length, {arguments}, {constants}, {tile}, True)"
        rest = f"FOLD_tile(row, first, length, {arguments}, {constants}, {small}, False)"
        first = f"first = whole * {tile} + (program - whole) * {small}"
        o.add("if LOOP:", "    while program < whole:")
        o.add(f"        {full}", "        program += step", f"    {first}", "    while first < length:")
        o.add(f"        {rest}", f"        first += step * {small}")
        o.add("else:", "    if program < whole:", f"        {full}", "    else:", f"        {first}")
        o.add("        if first < length:", f"            {rest}")
        o.depth -= 1


def _run(field: str) -> str:
    """The variable that holds where a field's run begins."""
    return "".join(c if c.isalnum() else "_" for c in field) + "_run"


def _reads(state: str, roots: list[Node]) -> bool:
    return any(n.op == "state" and n.attr[0] == state for n in walk(roots))
