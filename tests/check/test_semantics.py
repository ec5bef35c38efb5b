"""What the language means, one rule a test, on texts just large enough to need it."""

from __future__ import annotations

from hashlib import blake2b

import pytest

from coccl_dsl.check.values import Trace
from coccl_dsl.diagnostics import CompileError, Source
from coccl_dsl.pipeline import World, compile_text, parse_source

RANKS = "ranks r of n\n inout buf[n]\n compressor q = int8\n"


def text(body: str, head: str = RANKS, kind: str = "all_reduce", allow: str = "allow divergent") -> str:
    return f"collective t : {kind} {{\n {head} {allow}\n {body}\n}}"


def run(body: str, world: int | tuple[int, ...] = 2, dtype: str = "bf16", op: str = "sum", **more: str) -> Trace:
    """The proven run of one world."""
    collective = parse_source(Source("t", text(body, **more)))
    sizes = (world,) if isinstance(world, int) else world
    return collective.trace(World(sizes, op=op), dtype=dtype)


def codes(body: str, world: int | tuple[int, ...] = 2, dtype: str = "bf16", op: str = "sum", **more: str) -> set[str]:
    """What a run is rejected for; nothing when it proves."""
    try:
        run(body, world, dtype, op, **more)
    except CompileError as e:
        return set(e.codes)
    return set()


GATHER = {"kind": "all_gather", "head": "ranks r of n\n in x\n out y[n]\n compressor q = int8\n", "allow": ""}
BROADCAST = {"kind": "broadcast(root)", "head": "ranks r of n\n inout buf\n compressor q = int8\n", "allow": ""}
SWAP = "y[r] = x send x to (r + 1) mod n as w y[(r - 1) mod n] = w"


# ---- masks and names


def test_a_masked_rank_still_receives():
    body = "when r == 0 { send x to 1 as w } when r == 1 { send x to 0 as w } y[r] = x y[1 - r] = w"
    assert codes(body, **GATHER) == set()


def test_a_masked_rank_neither_sends_nor_assigns():
    trace = run("when r == root { for p in range(1, n) { send buf to (r + p) mod n as buf } }", 4, **BROADCAST)
    assert {m.source for m in trace.messages} == {0} and trace.sends == 3


def test_a_masked_rank_receives_at_an_index_made_in_the_mask():
    body = "when r == 0 { for k in range(1, 2) { let at = k - r send x to k as y[at] } } y[r] = x when r == 1 { send x to 0 as y[1] }"
    assert codes(body, **GATHER) == set()


def test_as_names_belong_to_the_block_around_when():
    assert (
        codes(
            "when r == 0 { send x to 1 as w } when r == 1 { y[0] = w } y[r] = x send y[r] to 1 - r as u y[1 - r] = u",
            **GATHER,
        )
        == set()
    )


def test_as_names_of_a_loop_do_not_leave_it():
    assert codes("for p in range(1, n) { send x to (r + p) mod n as w } y[r] = w", **GATHER) == {"E201"}


def test_let_inside_a_mask_is_not_visible_after_it():
    assert codes("when r == 0 { let c = 1 } buf[c] = buf[0]") == {"E201"}


def test_a_rank_to_which_nothing_arrives_keeps_the_value():
    head = "ranks r of n\n inout buf\n compressor q = int8\n wire v : q\n"
    body = "when r == root { v = compress(q, buf) } for p in range(1, n) { when r == root { send v to (r + p) mod n as v } } buf = decompress(v)"
    trace = run(body, 4, kind="broadcast(root)", head=head, allow="")
    assert {o[0].number for o in trace.outputs if o[0]} and trace.lossy == 1


def test_a_name_first_received_in_a_loop_is_new_each_time():
    body = "for p in range(2) { when p == 0 { send x to 1 - r as w } y[1 - r] = w } y[r] = x"
    assert codes(body, **GATHER) == {"E306"}


# ---- lockstep


def test_values_are_taken_before_anything_changes():
    head = "ranks r of n\n in x[n]\n out y[n]\n scratch a\n"
    body = "a = x[1 - r] send a to 1 - r as a y[1 - r] = a y[r] = x[r]"
    assert codes(body, kind="all_to_all", head=head, allow="") == set()


def test_two_buffers_swap_in_one_statement():
    head = "ranks r of n\n in x\n out y[n]\n scratch t[n]\n"
    trace = run("t[r] = x send t[r] to 1 - r as t[1 - r] y[:] = t[:]", kind="all_gather", head=head, allow="")
    assert trace.sends == 2 and trace.levels == 1


def test_a_named_value_keeps_what_it_was():
    body = "let mine = buf[0] buf[0] = buf[1] buf[1] = mine buf[1] += buf[1]"
    assert codes(body) == {"E302"}
    assert codes("let mine = buf[0] buf[0] += mine") == {"E302"}


def test_a_named_wire_does_not_follow_its_places():
    head = "ranks r of n\n inout buf\n compressor q = int8\n wire v : q\n"
    body = "v = compress(q, buf) let old = v send v to (r + 1) mod n as v buf = decompress(old) buf += decompress(v)"
    assert run(body, 2, head=head).sends == 2


def test_sums_associate_in_text_order():
    head = "ranks r of n\n inout buf\n scratch t[n]\n"
    gather = "t[r] = buf for p in range(1, n) { send buf to (r + p) mod n as t[(r - p) mod n] }"
    same = "buf = t[0] + t[1] + t[2]"
    other = "when r == 0 { buf = t[0] + (t[1] + t[2]) } when r > 0 { buf = t[0] + t[1] + t[2] }"
    commuted = "when r == 0 { buf = t[1] + t[0] + t[2] } when r > 0 { buf = t[0] + t[1] + t[2] }"
    assert codes(f"{gather} {same}", 3, head=head, allow="") == set()
    assert codes(f"{gather} {commuted}", 3, head=head, allow="") == set()
    assert codes(f"{gather} {other}", 3, head=head, allow="") == {"E307"}


# ---- wires and shapes


def test_wire_places_are_sent_as_one_message():
    head = "ranks r of n\n in x\n out y[n]\n compressor q = int8\n wire held[n] : q\n"
    body = "held[r] = compress(q, x) send held[r : r + 1] to 1 - r as held[1 - r : 2 - r] y[:] = decompress(held[:])"
    trace = run(body, kind="all_gather", head=head, allow="")
    assert (trace.sends, trace.chunks_sent, trace.lossy) == (2, 2, 1)


def test_whole_and_part_ranges_name_the_same_chunks():
    head = "mesh (node: c of m, local: l of k)\n in x\n out y[m, k]\n scratch t[m, k]\n"
    body = """t[c, l] = x
      for p in range(1, m) { send t[c, l] to node: (c + p) mod m as t[(c - p) mod m, l] }
      for p in range(1, k) { send t[:, l] to local: (l + p) mod k as t[0 : m, (l - p) mod k] }
      y[:, :] = t[0 : m, 0 : k]"""
    trace = run(body, (3, 2), kind="all_gather", head=head, allow="")
    assert trace.levels == 2 and trace.chunks_sent == 3 * 2 * (2 + 3)


def test_a_group_of_values_keeps_its_shape_under_a_name():
    head = "mesh (node: c of m, local: l of k)\n inout buf[m, k]\n compressor q = int8\n"
    assert codes("let v = compress(q, buf[:, l]) buf[c, l] = decompress(v[c])", (2, 2), head=head) <= {"E303"}
    assert codes("let v = compress(q, buf[:, l]) buf[c, l] = decompress(v[c, l])", (2, 2), head=head) == {"E211"}
    assert codes("let v = compress(q, buf[:, :]) buf[:, l] = decompress(v[:, l])", (2, 2), head=head) <= {"E303"}
    assert codes("let v = compress(q, buf[:, l]) buf[c, l] = decompress(v)", (2, 2), head=head) == {"E209"}


def test_forwarding_unopened_is_no_lossy_step_and_reopening_is():
    head = "ranks r of n\n inout buf\n compressor q = int8\n wire v : q\n"
    forward = "when r == root { v = compress(q, buf) } for s in range(n - 1) { when (r - root) mod n == s { send v to (r + 1) mod n as v } } buf = decompress(v)"
    assert run(forward, 4, kind="broadcast(root)", head=head, allow="").lossy == 1
    reopen = forward.replace("send v to", "send compress(q, decompress(v)) to")
    assert run(reopen, 4, kind="broadcast(root)", head=head).lossy == 4


def test_a_send_to_itself_is_no_message():
    trace = run("for p in range(n) { send x to (r + p) mod n as y[(r - p) mod n] }", 3, **GATHER)
    assert trace.sends == 3 * 2 and trace.levels == 1


# ---- lossy steps

SUM = "for p in range(1, n) { send buf[(r + p) mod n] to (r + p) mod n as w buf[r] += w }"
SERVE = "let v = buf[r] for p in range(1, n) { send v to (r + p) mod n as w buf[(r - p) mod n] = w }"


def test_bare_sends_of_sums_round_for_bf16_and_not_for_f32():
    assert run(f"{SUM} {SERVE}", 4, dtype="f32", allow="").lossy == 0
    assert run(f"{SUM} {SERVE}", 4, dtype="bf16").lossy == 1


def test_bare_and_raw_sends_of_untouched_inputs_are_exact():
    assert run(SWAP, 2, **GATHER).lossy == 0
    raw = SWAP.replace("send x", "send compress(q, x)").replace("= w", "= decompress(w)")
    head = GATHER["head"].replace("int8", "raw")
    assert run(raw, 2, **{**GATHER, "head": head}).lossy == 0


def test_raw_rounds_a_sum_once_and_no_more():
    head = RANKS.replace("int8", "raw")
    once = SERVE.replace("let v = buf[r]", "let v = compress(q, buf[r]) buf[r] = decompress(v)").replace(
        "= w", "= decompress(w)"
    )
    again = once.replace("send v", "send compress(q, decompress(v))")
    for body in (once, again):
        assert run(f"{SUM} {body}", 4, head=head, allow="").lossy == 1


@pytest.mark.parametrize("op", ["avg", "premul(3.0)"])
def test_a_factor_makes_raw_lossy(op: str):
    assert run(SWAP, 2, op=op, **GATHER).lossy == 1
    assert run(SWAP, 2, op=op, dtype="f32", **GATHER).lossy == 0


def test_a_factor_can_make_replicas_differ():
    head = "ranks r of n\n inout buf\n scratch t[n]\n"
    body = "t[r] = buf send buf to 1 - r as t[1 - r] buf = t[0] + t[1]"
    assert codes(body, head=head, allow="") == set()
    assert codes(body, op="avg", head=head, allow="") == {"E307"}


def test_bf16_compressor_is_exact_for_bf16_inputs_alone():
    body = SWAP.replace("send x", "send compress(q, x)").replace("= w", "= decompress(w)")
    more = {**GATHER, "head": GATHER["head"].replace("int8", "bf16")}
    assert run(body, dtype="bf16", **more).lossy == 0
    assert codes(body, dtype="f32", **more) == {"E307"}


# ---- what is allowed and required


def test_allow_divergent():
    body = "send compress(q, buf) to 1 - r as w buf += decompress(w)"
    head = "ranks r of n\n inout buf\n compressor q = int8\n"
    assert codes(body, head=head, allow="") == {"E307"}
    assert run(body, head=head).divergent


def test_require_bounds_every_count():
    for line in (
        "lossy <= 0",
        "sends == 2",
        "steps < 2 and chunks == 2",
        "not sends > n",
        "sends == n * (n - 1) or n == 2",
    ):
        assert codes(SWAP, **{**GATHER, "allow": f"require {line}"}) == set(), line
    for line in ("lossy > 0", "sends != 2", "chunks >= 3", "n < 2"):
        assert codes(SWAP, **{**GATHER, "allow": f"require {line}"}) == {"E308"}, line
    assert codes(SWAP, **{**GATHER, "allow": "require sends div (n - 2) == 1"}) == {"E311"}


def test_every_root_is_checked():
    good = "for p in range(1, n) { when r == root { send buf to (r + p) mod n as buf } }"
    report = compile_text(text(good, **BROADCAST)).report
    assert sorted(w.params["root"] for w in report.worlds if w.sizes == (3,)) == [0, 1, 2]
    bad = good.replace("r == root", "r == 0")
    with pytest.raises(CompileError, match="root = 1"):
        compile_text(text(bad, **BROADCAST))


def test_reduce_promises_the_root_alone():
    body = "for p in range(1, n) { when (r + p) mod n == root { send buf to root as w } when r == root { buf += w } }"
    assert codes(body, 3, kind="reduce(root)", head="ranks r of n\n inout buf\n", allow="") == set()


# ---- bases


def basis(a: str, b: str, body: str) -> set[str]:
    head = f"ranks r of n\n in x[n]\n out y\n scratch t in {a}\n scratch u in {b}\n compressor q = int8_h32\n"
    return codes(body, kind="reduce_scatter", head=head, allow="")


def test_a_value_in_no_basis_converts_by_itself():
    body = "t = x[r] send compress(q, x[1 - r]) to 1 - r as w t += decompress(w) y = t"
    assert basis("h32", "h32", body) == set()


def test_two_different_bases_in_one_statement_are_an_error():
    assert basis("h32", "h64", "t = x[r] u = t y = u") == {"E210"}
    assert basis("h32", "h64", "t = x[r] u = x[r] y = t + u") == {"E210"}
    assert basis("h32", "h64", "u = x[r] y = decompress(compress(q, u))") == {"E210"}
    assert basis("h64", "h32", "t = x[r] y = t t = y u = y") <= {"E303"}


def test_turning_there_and_back_has_a_number_of_its_own():
    head = "ranks r of n\n in x\n out y[n]\n scratch t in h32\n"
    body = "t = x when r == 0 { y[0] = x } when r == 1 { y[1] = t } send t to 1 - r as w when r == 0 { y[1] = w } when r == 1 { y[0] = w }"
    assert codes(body, kind="all_gather", head=head, allow="", dtype="f32") == {"E307"}


# ---- meshes and sizes


def test_sends_along_an_axis_and_to_coordinates():
    head = "mesh (node: c of m, local: l of k)\n in x\n out y[m, k]\n"
    body = "y[c, l] = x for i in range(m) { for j in range(k) { when i + j > 0 { send x to ((c + i) mod m, (l + j) mod k) as y[(c - i) mod m, (l - j) mod k] } } }"
    trace = run(body, (3, 2), kind="all_gather", head=head, allow="")
    assert trace.sends == 6 * 5 and trace.levels == 1
    along = "y[c, l] = x send x to local: 1 - l as y[c, 1 - l] send y[c, :] to node: 1 - c as y[1 - c, :]"
    assert run(along, (2, 2), kind="all_gather", head=head, allow="").levels == 2


def test_size_names_a_number_of_chunks():
    head = "ranks r of n\n size p = pow2floor(n)\n size e = n - p\n inout buf[p]\n"
    body = "let last = p - 1 buf[last] = buf[last] when e == 1 { buf[p - e] = buf[p - 1] }"
    assert codes(f"{body} buf[last + e] = buf[0]", 3, head=head) == {"E310"}
    assert codes(body, 1, head=head, allow="") == set()


def test_conditions_have_names():
    body = "let low = r == 0 when low and not (r > n) { send x to 1 as w } when not low { send x to 0 as w } y[r] = x y[1 - r] = w"
    assert codes(body, **GATHER) == set()


# ---- levels


def test_independent_sends_share_a_level():
    body = "y[r] = x for p in range(1, n) { send x to (r + p) mod n as y[(r - p) mod n] }"
    assert run(body, 4, **GATHER).levels == 1


def test_reuse_of_a_name_is_no_dependence():
    body = "y[r] = x for p in range(1, n) { send x to (r + p) mod n as w y[(r - p) mod n] = w }"
    assert run(body, 4, **GATHER).levels == 1


def test_a_level_is_the_longest_chain_over_all_ranks():
    ring = "for s in range(n - 1) { send buf[(r - s) mod n] to (r + 1) mod n as w buf[(r - s - 1) mod n] += w }"
    serve = (
        "let own = (r + 1) mod n for p in range(1, n) { send buf[own] to (r + p) mod n as v buf[(own - p) mod n] = v }"
    )
    assert run(f"{ring} {serve}", 4).levels == 3 + 1


def test_one_rank_that_waits_delays_the_level_of_all():
    """Rank 1 sends on what rank 0 sent it, in the statement in which rank 2 sends its input."""
    body = "y[r] = x when r == 0 { send x to 1 as w } when r == 1 { y[0] = w } when r > 0 { send y[r - 1 : r] to (r + 1) mod n as u }"
    more = {**GATHER, "head": GATHER["head"] + " scratch t\n", "allow": "allow divergent"}
    body = (
        body.replace("y[r - 1 : r]", "t")
        .replace("y[r] = x", "y[r] = x t = x")
        .replace("{ y[0] = w }", "{ y[0] = w t = w }")
    )
    rest = "for p in range(1, n) { send x to (r + p) mod n as y[(r - p) mod n] }"
    levels = {
        (m.source, m.target): m.level for m in run(f"{body} {rest}", 3, **more).messages if m.span.text.endswith("as u")
    }
    assert levels == {(1, 2): 1, (2, 0): 1}


# ---- numbers


def keys(body: str, world: int = 3, **more: str) -> list[list[int]]:
    trace = run(body, world, **more)
    return [[trace.numbers.key(v.number) for v in out if v is not None] for out in trace.outputs]


TWO_SHOT = """for p in range(1, n) {
    let peer = (r + p) mod n
    send compress(q, buf[peer]) to peer as w
    buf[r] += decompress(w)
  }
  let v = compress(q, buf[r])
  buf[r] = decompress(v)
  for p in range(1, n) { send v to (r + p) mod n as w buf[(r - p) mod n] = decompress(w) }"""


def test_keys_depend_on_the_terms_alone():
    renamed = TWO_SHOT.replace("peer", "there").replace(" as w", " as got").replace("decompress(w)", "decompress(got)")
    spaced = TWO_SHOT.replace("\n", "\n\n # a comment\n ")
    assert keys(TWO_SHOT) == keys(renamed) == keys(spaced)


def test_keys_do_not_depend_on_the_order_of_independent_statements():
    head = "ranks r of n\n inout buf\n compressor q = int8\n scratch t[n]\n"
    first, second = "t[0] = buf", "send compress(q, buf) to (r + 1) mod n as w"
    rest = "buf = t[0] + decompress(w)"
    assert keys(f"{first} {second} {rest}", 2, head=head) == keys(f"{second} {first} {rest}", 2, head=head)


def test_keys_of_two_operand_sums_do_not_depend_on_the_side():
    head = "ranks r of n\n inout buf\n compressor q = int8\n"
    send = "send compress(q, buf) to 1 - r as w"
    assert keys(f"{send} buf = buf + decompress(w)", 2, head=head) == keys(
        f"{send} buf = decompress(w) + buf", 2, head=head
    )


def test_different_partial_sums_have_different_keys():
    trace = run(TWO_SHOT, 4)
    wires = {w.key_number for m in trace.messages for w in m.sent}
    assert len({trace.numbers.key(n) for n in wires}) == len(wires) == 4 * 3 + 4


def test_keys_are_fixed():
    """Seeds of stochastic rounding, and so bits: they may not change from release to release."""
    term = b"input 0 0"
    assert keys(SWAP, 2, **GATHER)[0][0] == int.from_bytes(blake2b(term, digest_size=16).digest()[:8], "little")
    sums = "send compress(q, buf) to 1 - r as w buf += decompress(w)"
    assert keys(sums, 2, head="ranks r of n\n inout buf\n compressor q = int8\n") == KEYS


KEYS = [[16740204618617764926], [10298753954202505009]]
