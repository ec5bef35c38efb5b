"""From a rule and a kind of call to a bound collective: which algorithm, which compressors, which mesh. Local, and the same on all ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ..diagnostics import CompileError
from ..lang.files import find, is_file, read
from ..pipeline import Collective, load
from ..plan.calibration import NATIVE
from ..plan.model import CPU, GPU
from ..plan.ops import Plan
from ..plan.show import sent_bytes
from ..policy.model import Rule
from ..policy.read import rebound
from ..runtime.dispatch import sources_of
from ..runtime.dtypes import dtype_name
from ..runtime.measured import Measured
from ..runtime.op import Op
from ..wire.codec import TYPES
from ..wire.layout import bits_per_value
from .choose import CANDIDATES, Choice, choose
from .native import KINDS

# Counts whose bytes are remembered, where every call has another.
MAX_SIZES = 4096
_loaded: dict[tuple[Path, str], Collective] = {}


@dataclass
class Bound:
    """An op with what the report says of it. name: role.op, for what it carries from call to call."""

    op: Op
    algorithm: str
    compressor: str
    name: str
    _sizes: dict[int, tuple[int, int]] = field(default_factory=dict)

    def sizes(self, count: int) -> tuple[int, int]:
        """(raw bytes, wire bytes) that this rank sends in a call of `count` elements."""
        found = self._sizes.get(count)
        if found is None:
            plan = self.op.plan
            if len(self._sizes) >= MAX_SIZES:
                self._sizes.clear()
            sent, plain = sent_bytes(plan, count) if isinstance(plan, Plan) else (0, 0)
            found = self._sizes[count] = (plain, sent)
        return found

    @property
    def carries(self) -> bool:
        """Whether a call depends on those before: states, numbers of stochastic rounding."""
        plan = self.op.plan
        return plan is not None and (plan.stateful or plan.stochastic)

    def state_bytes(self) -> int:
        """Of the states that the op's compressors keep."""
        executor = self.op._executor
        states = executor.states.values() if executor is not None else ()
        return sum(t.nbytes for s in states for pair in s.tensors.values() for t in pair)


def loaded(algorithm: str) -> Collective:
    """`load`, once for each text: a file that was edited since is read again, as is another one that the name means after a chdir. Ops that were
    bound keep the text that they have. Raises as `load` does."""
    file, name = algorithm, ""
    if ":" in algorithm and not is_file(Path(algorithm)):
        file, name = algorithm.rsplit(":", 1)
    path = Path(file)
    path = (path if is_file(path) else find(file, "algorithms", None)).resolve()
    kept = _loaded.get((path, name))
    if kept is None or not _as_read(kept):
        kept = _loaded[path, name] = load(algorithm)
    return kept


def _as_read(collective: Collective) -> bool:
    """Whether its files hold what they held. Their times would not tell two edits within a tick of the clock apart."""
    sources = [collective.source, *(source for _, source in sources_of(collective.scope))]
    try:
        return all(s.path is None or read(Path(s.path)).text == s.text for s in dict.fromkeys(sources))
    except CompileError:
        return False


@dataclass(frozen=True)
class Selected:
    collective: Collective
    compressors: dict[str, str]
    mesh: dict[str, int] | None


def bypassed(
    rule: Rule,
    kind: str,
    dtype: torch.dtype,
    count: int,
    size: int,
    nodes: tuple[int, int],
    device: torch.device,
    measured: Measured,
) -> bool:
    """Whether torch's own collective was measured to be quicker than what the rule would take."""
    if rule.algorithm != "auto" or rule.stateful or not isinstance(rule.compressor, str) or kind not in KINDS:
        return False
    return quickest(kind, dtype_name(dtype), count, size, nodes, device, rule.compressor, measured, True).name == NATIVE


def select(
    rule: Rule,
    kind: str,
    dtype: torch.dtype,
    count: int,
    size: int,
    nodes: tuple[int, int],
    device: torch.device,
    measured: Measured | None = None,
) -> Selected:
    """kind: as in `CANDIDATES`. count: elements of the input; size: ranks; nodes: (nodes, ranks a node)."""
    name = dtype_name(dtype)
    algorithm = rule.algorithm
    if algorithm == "auto":
        assert isinstance(rule.compressor, str)
        # Parts of an all_to_all may differ in size, so they go straight to their ranks.
        quick = (
            None
            if kind == "all_to_all"
            else quickest(kind, name, count, size, nodes, device, rule.compressor, measured)
        )
        algorithm = quick.name if quick is not None else "all_to_all_direct"
    collective = loaded(algorithm)
    if isinstance(rule.compressor, str):
        compressors = rebound(collective, rule.compressor, name)
    else:
        compressors = dict(rule.compressor)
    mesh = dict(zip(collective.axes, nodes, strict=True)) if collective.axes else None
    return Selected(collective, compressors, mesh)


def quickest(
    kind: str,
    dtype: str,
    count: int,
    size: int,
    nodes: tuple[int, int],
    device: torch.device,
    compressor: str,
    measured: Measured | None = None,
    native: bool = False,
) -> Choice:
    """The shipped algorithm for an input of `count` elements, and why. All of it from what all ranks know.

    measured: the table that the ranks agreed on, which decides where it knows of such calls; native: torch's own collective may be the choice.
    """
    first = loaded(CANDIDATES[kind][0].name)
    codecs = first.program(dtype, dict.fromkeys(first.program(dtype).codecs, compressor)).codecs.values()
    ratio = max(bits_per_value(c) for c in codecs) / TYPES[dtype][0]
    plain = count * TYPES[dtype][0] / 8 * (size if kind == "all_gather" else 1)
    links = GPU if device.type == "cuda" else CPU
    choice = choose(kind, *nodes, plain, ratio, links, compressor == "raw")
    table = measured.in_force if measured is not None else None
    if measured is None or table is None or compressor == "raw":
        return choice
    possible = [name for name, _, why in choice.considered if not why]
    item = TYPES[dtype][0] // 8
    elements = count * (size if kind == "all_gather" else 1)
    verdict = table.decide(
        measured.place, kind, elements, item, ratio * 8 * item, possible, native=native and kind in KINDS
    )
    return choice if verdict is None else replace(choice, name=verdict.best.name, verdict=verdict)
