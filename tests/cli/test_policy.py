"""coccl-policy: what it prints and with which code it ends; and what policies mean."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coccl_dsl.cli.policy import main
from coccl_dsl.diagnostics import CompileError
from coccl_dsl.policy import Call, read_policy_text

ROOT = Path(__file__).resolve().parents[2]
TEXT = """\
[[rule]]
on = "fsdp.reduce_scatter"
compressor = "int4"
min_bytes = "1MiB"
after_step = 100

[[rule]]
on = ["dp", "fsdp", "pp.send.backward"]
compressor = "int8"

[[rule]]
on = "*"
group = "TENSOR_.*"
dtype = "bf16"
compressor = "fp8_e4m3"
"""


def call(
    roles: str, op: str, size: int | None = 1 << 20, dtype: str = "bf16", direction: str = "", desc: str = ""
) -> Call:
    return Call(tuple(roles.split()), op, dtype, size, direction, desc)


def rules(text: str, what: Call) -> list[int]:
    return [r.number for _, r in read_policy_text(text).meets(what)[0]]


def test_the_first_rule_that_fits_takes_a_call():
    assert rules(TEXT, call("fsdp", "reduce_scatter")) == [1, 2], "the second until the first's step has come"
    assert rules(TEXT, call("fsdp", "reduce_scatter", 4096)) == [2]
    assert rules(TEXT, call("fsdp", "reduce_scatter", 4095)) == []
    assert rules(TEXT, call("dp", "all_reduce")) == [2]
    assert rules(TEXT, call("tp", "all_reduce")) == []
    assert rules(TEXT, call("", "all_reduce", desc="TENSOR_MODEL_PARALLEL_GROUP")) == [3]
    assert rules(TEXT, call("", "all_reduce", dtype="f32", desc="TENSOR_MODEL_PARALLEL_GROUP")) == []
    assert rules(TEXT, call("pp", "send", direction="backward")) == [2]
    assert rules(TEXT, call("pp", "send", direction="forward")) == []
    assert rules(TEXT, call("pp", "send")) == []


def test_the_likelier_role_is_the_one():
    policy = read_policy_text(TEXT)
    ((role, rule),) = policy.meets(call("tp dp", "all_reduce"))[0]
    assert (role, rule.number) == ("dp", 2)


def test_broadcast_has_to_be_named():
    assert rules(TEXT, call("dp", "broadcast")) == []
    assert rules('[[rule]]\non = "dp.broadcast"\ncompressor = "int8"', call("dp", "broadcast")) == [1]


def test_a_native_rule_keeps_others_away():
    text = (
        '[[rule]]\non = "dp.all_reduce"\ncompressor = "native"\nmax_bytes = "64KiB"\n'
        + '[[rule]]\non = "dp"\ncompressor = "int8"\n'
    )
    policy = read_policy_text(text)
    assert [r.native for _, r in policy.meets(call("dp", "all_reduce", 65536))[0]] == [True]
    assert [r.native for _, r in policy.meets(call("dp", "all_reduce", 65537))[0]] == [False]


def test_dtypes_are_those_that_the_compressor_takes():
    (rule,) = read_policy_text('[[rule]]\non = "dp"\ncompressor = "lossless_bf16"').rules
    assert rule.dtypes == ("bf16",)
    with pytest.raises(CompileError) as e:
        read_policy_text('[[rule]]\non = "dp"\ndtype = "f32"\ncompressor = "lossless_bf16"')
    assert e.value.codes == ("E501",)


def test_ranks_compare_every_entry_and_the_texts_that_are_named():
    a, b = (read_policy_text(TEXT.replace("int4", c)).fields() for c in ("int4", "int4(group=64)"))
    assert {k for k in a.keys() | b.keys() if a.get(k) != b.get(k)} == {
        "policy: rule 1 compressor",
        "text of compressor int4",
        "text of compressor int4(group=64)",
    }


@pytest.mark.parametrize(
    "line, code, part",
    [
        ('on = "dp.send"\ntransport = "symm"\ncompressor = "int8"', "E603", "send runs over torch's own backend"),
        ('on = "ep.all_to_all"\nmax_bytes = 5\ncompressor = "int8"', "E603", "whose parts differ"),
        ('on = "ep.all_to_all"\nalgorithm = "all_to_all_mesh"\ncompressor = "int8"', "E603", "even parts only"),
        ('on = "dp.recv"\ncompressor = "int8"', "E602", "say dp.send"),
        ('on = "dp"\nmin_bytes = 9\nmax_bytes = 5\ncompressor = "int8"', "E603", "below `min_bytes`"),
        ('on = "tp.all_reduce.forward"\ncompressor = "int8"', "E603", "has no direction"),
        ('on = "dp"\nalgorithm = "two_shot"\ncompressor = "int8"', "E603", "for any collective"),
        ('on = "dp.all_reduce"\nalgorithm = "no_such"\ncompressor = "int8"', "E103", "no_such"),
        ('on = "dp.all_reduce"\nalgorithm = "two_shot"\ncompressor = { p = "int8" }', "E603", "no compressor `p`"),
        ('on = "dp.all_reduce"\ncompressor = { q = "int8" }', "E603", "need an `algorithm`"),
        ('on = "dp.all_reduce"\ncompressor = "weight_delta4"', "E603", "DDP's hook"),
        ('on = "dp"\ngroup = "("\ncompressor = "int8"', "E602", "not a pattern"),
        ('on = []\ncompressor = "int8"', "E602", "empty"),
        ('on = 5\ncompressor = "int8"', "E602", "`on` is 5"),
        ('on = "dp"\ncompressor = 5', "E602", "`compressor` is 5"),
    ],
)
def test_impossible_rules_are_refused_with_a_place(line: str, code: str, part: str):
    with pytest.raises(CompileError) as e:
        read_policy_text("arena_mib = 4\n[[rule]]\n" + line)
    assert code in e.value.codes and part in str(e.value)
    assert all(d.span is not None and d.span.source.position(d.span.start)[0] >= 2 for d in e.value.diagnostics)


def test_places_survive_comments_strings_and_several_lines():
    text = '# [[rule]]\nlog = """\n[[rule]] on = "x"\n"""\n[[rule]]\non = [  # "dp.nothing"\n  "dp",\n  "tp.nothing", # x\n]\n"compressor" = \'int8\'\n'
    with pytest.raises(CompileError) as e:
        read_policy_text(text)
    (found,) = e.value.diagnostics
    assert found.span is not None and found.span.text == '"tp.nothing"'
    assert found.span.source.position(found.span.start) == (8, 3)


def test_check_and_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(TEXT)
    bad.write_text(TEXT + "x = 1\n")
    assert main(["check", str(good)]) == 0
    assert "3 rules, nothing wrong" in capsys.readouterr().out
    assert main(["check", str(good), str(bad)]) == 1
    told = capsys.readouterr()
    assert "bad.toml:16:1: error[E601]" in told.err and "good.toml: 3 rules" in told.out
    assert main(["explain", str(good)]) == 0
    out = capsys.readouterr().out
    assert "fsdp.reduce_scatter" in out and "from 1 MiB" in out and "/TENSOR_.*/" in out
    assert main(["check", str(tmp_path / "none.toml")]) == 1
    assert "E103" in capsys.readouterr().err
    assert main([]) == 2
    capsys.readouterr()
    assert main(["explain", "--help"]) == 0
    assert "example: coccl-policy" in capsys.readouterr().out


def test_explain_says_what_becomes_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    policy, log = tmp_path / "policy.toml", tmp_path / "run.jsonl"
    policy.write_text(TEXT)
    lines = [
        {"roles": ["fsdp"], "op": "reduce_scatter", "dtype": "bf16", "bytes": 1 << 21, "direction": "", "desc": "m"},
        {"roles": ["tp"], "op": "all_reduce", "dtype": "bf16", "bytes": 1 << 21, "direction": "", "desc": "m"},
        {"roles": [], "op": "all_reduce", "dtype": "int64", "bytes": 8, "direction": "", "desc": "default_pg"},
        {"roles": ["dp"], "op": "all_to_all", "dtype": "f32", "bytes": None, "direction": "", "desc": "m"},
    ]
    told = [{**x, "calls": 10, "ranks": 8, "native": "int64" if x["dtype"] == "int64" else ""} for x in lines]
    log.write_text("".join(json.dumps(t) + "\n" for t in told))
    assert main(["explain", str(policy), "--log", str(log)]) == 0
    out = capsys.readouterr().out.splitlines()
    rows = {tuple(line.split()[:2]): line for line in out}
    assert "rule 2: int8" in rows["fsdp", "reduce_scatter"]
    assert "no rule" in rows["tp", "all_reduce"] and "int64" in rows["default_pg", "all_reduce"]
    assert "rule 2: int8" in rows["dp", "all_to_all"] and "parts differ" in rows["dp", "all_to_all"]
    assert "all tensors: 40 MiB" in out[-1]
    log.write_text("{}\n")
    assert main(["explain", str(policy), "--log", str(log)]) == 1
    assert "run.jsonl:1: not a line of a log" in capsys.readouterr().err


def test_explain_names_the_wires_that_an_algorithm_leaves_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    policy, log = tmp_path / "policy.toml", tmp_path / "run.jsonl"
    line = {"roles": ["dp"], "op": "all_reduce", "dtype": "f32", "bytes": 1 << 21, "direction": "", "desc": "m"}
    log.write_text(json.dumps({**line, "calls": 10, "ranks": 8, "native": ""}) + "\n")
    for compressor, said in (
        ('"int8"', "rule 1: int8, but for `a` of two_level  up to 3.94x"),
        ('{ a = "int8", b = "int8" }', "  3.94x"),
    ):
        policy.write_text(f'[[rule]]\non = "dp.all_reduce"\nalgorithm = "two_level"\ncompressor = {compressor}\n')
        assert main(["explain", str(policy), "--log", str(log)]) == 0
        out = capsys.readouterr().out
        assert said in out and ("up to" in said) == (", up to 3.94x less" in out), out


def test_policies_are_checked_without_torch(tmp_path: Path):
    (tmp_path / "p.toml").write_text(TEXT)
    code = "import sys; sys.modules['torch'] = sys.modules['triton'] = None\nfrom coccl_dsl.cli.policy import main; sys.exit(main(['check', 'p.toml']))"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=env, capture_output=True)
