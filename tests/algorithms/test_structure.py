"""Every shipped algorithm is proven for n = 2..16 and meshes up to 4x4, and its counts are the formulas of docs/algorithms.md."""

from __future__ import annotations

from fractions import Fraction

import pytest
from tables import rows

from coccl_dsl.check.report import param_choices
from coccl_dsl.check.values import Trace
from coccl_dsl.lang.files import library
from coccl_dsl.pipeline import World, load
from coccl_dsl.torch.choose import CANDIDATES

NAMES = library("algorithms")
FLAT = [(n,) for n in range(2, 9)]
LARGE = [(n,) for n in range(9, 17)]
MESHES = [(2, 2), (2, 3), (3, 2), (2, 4), (4, 2)]
LARGE_MESHES = [(3, 3), (3, 4), (4, 3), (4, 4)]


def worlds(name: str, large: bool) -> list[tuple[int, ...]]:
    c = load(name)
    if c.kind == "send_recv":
        return [] if large else [(2,)]
    return (LARGE_MESHES if large else MESHES) if c.axes else (LARGE if large else FLAT)


def wires(trace: Trace, kind: str) -> int:
    """Chunks of the whole tensor."""
    if kind == "all_gather":
        return trace.world
    return len(trace.input_extents[0])


def sent(trace: Trace, across: bool = False) -> int:
    """Wires that the busiest rank sends, in all or to other nodes."""
    totals = [0] * trace.world
    for m in trace.messages:
        if not across or trace.coordinates[m.source][0] != trace.coordinates[m.target][0]:
            totals[m.source] += len(m.sent)
    return max(totals)


def compare(name: str, sizes: tuple[int, ...]) -> None:
    c, row = load(name), rows()[name]
    # Every level lossy, whatever is shipped raw.
    bound = dict.fromkeys((n for n, q in c.program().codecs.items() if q.cast), "int8")
    for params in param_choices(c.program(), sizes, None):
        trace = c.trace(World(sizes, params.get("root", 0)), compressors=bound)
        chunks = wires(trace, c.kind)
        found = {
            "messages": Fraction(trace.sends),
            "sent": Fraction(sent(trace), chunks),
            "between nodes": Fraction(sent(trace, across=True), chunks),
            "steps": Fraction(trace.levels),
            "lossy": Fraction(trace.lossy),
        }
        for column, formula in row.formulas.items():
            assert found[column] == formula(sizes), (name, sizes, params, column)
        assert not trace.divergent


def test_the_page_has_a_row_for_every_algorithm():
    assert sorted(rows()) == sorted(NAMES)
    for name, row in rows().items():
        assert row.mesh == bool(load(name).axes) and row.use
        assert {"messages", "sent", "steps", "lossy"} <= row.formulas.keys()
        assert ("between nodes" in row.formulas) == row.mesh


@pytest.mark.parametrize("name", NAMES)
def test_counts_equal_the_formulas(name):
    for sizes in worlds(name, large=False):
        compare(name, sizes)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_counts_equal_the_formulas_in_large_worlds(name):
    for sizes in worlds(name, large=True):
        compare(name, sizes)


@pytest.mark.parametrize("compressor", ["int8", "raw"])
@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_laid_out_and_takes_every_compressor(name, compressor):
    from coccl_dsl.lang.files import find, read
    from coccl_dsl.lang.formatter import format_text

    source = read(find(name, "algorithms", None))
    assert format_text(source) == source.text
    c = load(name, dict.fromkeys(load(name).program().codecs, compressor))
    sizes = worlds(name, large=False)[-1]
    for dtype in ("f32", "bf16", "f16"):
        trace = c.trace(World(sizes), dtype=dtype)
        assert compressor != "raw" or dtype != "f32" or trace.lossy == 0


def test_the_shipped_set_is_what_the_collectives_need():
    kinds = {}
    for name in NAMES:
        kinds.setdefault(load(name).kind, set()).add(name)
    assert kinds["all_reduce"] >= {
        "ring", "one_shot", "two_shot", "three_shot", "two_level", "halving_doubling", "recursive_doubling", "tree",
    }  # fmt: skip
    assert kinds["reduce_scatter"] >= {
        "reduce_scatter_ring", "reduce_scatter_direct", "reduce_scatter_mesh", "sdp4bit", "reduce_scatter_halving",
    }  # fmt: skip
    assert kinds["all_gather"] >= {"all_gather_ring", "all_gather_direct", "all_gather_mesh", "all_gather_doubling"}
    assert kinds["all_to_all"] >= {"all_to_all_direct", "all_to_all_mesh"}
    assert kinds["broadcast"] >= {"tree_broadcast", "chain_broadcast", "scatter_broadcast"}
    assert kinds["reduce"] >= {"tree_reduce", "chain_reduce", "scatter_reduce"}


@pytest.mark.parametrize("kind", CANDIDATES)
def test_what_is_chosen_from_has_the_page_s_figures(kind):
    """`torch/choose.py` keeps its own formulas, by step; they add up to the page's."""
    for c in CANDIDATES[kind]:
        row = rows()[c.name]
        assert load(c.name).kind == kind and row.mesh == c.mesh
        for sizes in [(2, 2), (2, 4), (4, 2), (3, 4)] if c.mesh else [(1, n) for n in (2, 3, 4, 6, 8, 16)]:
            flat = sizes if c.mesh else (sizes[1],)
            if kind == "send_recv" and flat != (2,):
                continue
            phases = c.phases(*sizes)
            if "chain" not in c.name:
                assert sum(p.times for p in phases if p.messages) == row.formulas["steps"](flat), (c.name, sizes)
            lossy = row.formulas["lossy"](flat)
            assert c.lossy(*sizes) == (lossy - 2 if c.name == "two_level" else lossy), (c.name, sizes)
            if c.name not in (
                "halving_doubling",
                "recursive_doubling",
                "tree_reduce",
                "scatter_reduce",
                "chain_broadcast",
                "chain_reduce",
            ):
                assert sum(p.times * p.share for p in phases) == pytest.approx(float(row.formulas["sent"](flat))), (
                    c.name
                )
