"""coccl-policy: is a policy right, what does it say, and what would it do to the calls of a run."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from ..diagnostics import CompileError
from ..lang.parse import parse_binding
from ..pipeline import load
from ..policy import Call, Policy, Rule, read_policy
from ..policy.read import rebound
from ..wire.codec import TYPES
from ..wire.compile import compile_codec
from ..wire.layout import bits_per_value
from ..wire.scope import Scope, bind
from .show import print_table

EXAMPLES = """\
examples:
  coccl-policy check policy.toml
  coccl-policy explain policy.toml                    its rules, in the order in which they are looked at
  coccl-policy explain policy.toml --log run.jsonl    what it would do to every kind of call of a run

A run writes its kinds of calls where its policy says log = "run.jsonl", which needs no rules.
"""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="coccl-policy",
        description="Check a policy (TOML) for COCCL_POLICY and coccl_dsl.enable, and say what it does.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = p.add_subparsers(dest="verb", required=True, metavar="check|explain")
    for name, help, example in (
        ("check", "report every mistake, with line and column", "coccl-policy check policy.toml"),
        ("explain", "the rules, or what they do to a run", "coccl-policy explain policy.toml --log run.jsonl"),
    ):
        verb = verbs.add_parser(name, help=help, description=help, epilog=f"example: {example}")
        if name == "check":
            verb.add_argument("files", metavar="FILE", type=Path, nargs="+", help="policies")
        else:
            verb.add_argument("file", metavar="FILE", type=Path, help="a policy")
            verb.add_argument("--log", metavar="RUN", type=Path, help="kinds of calls of a run, as `log` wrote them")
    return p


def bits(rule: Rule, dtype: str) -> float:
    """Bits a value on the wire, of the widest of the rule's compressors."""
    texts = [rule.compressor] if isinstance(rule.compressor, str) else [v for _, v in rule.compressor]
    return max(bits_per_value(compile_codec(bind(parse_binding(t), Scope()), dtype)) for t in texts)


def whole(rule: Rule, dtype: str) -> list[str]:
    """Wires of the rule's algorithm that it leaves as they are: those within a host of `two_level`, say."""
    if rule.algorithm == "auto":
        return []
    collective = load(rule.algorithm)
    text = rule.compressor
    given = rebound(collective, text, dtype) if isinstance(text, str) else dict(text)
    return [name for name, codec in collective.program(dtype, given).codecs.items() if codec.cast]


def _size(n: int) -> str:
    power = min(3, max(0, (n.bit_length() - 1) // 10))
    return f"{n / 1024**power:,.4g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def _rules(policy: Policy) -> None:
    rows = []
    for r in policy.rules:
        most = f" .. {_size(r.max_bytes)}" if r.max_bytes is not None else ""
        sizes = f"from {_size(r.min_bytes)}{most}" if r.min_bytes or most else "any"
        what = ", ".join(map(str, r.on)) + (f" where the group is /{r.group}/" if r.group else "")
        width = "-" if r.native else ", ".join(f"{bits(r, d):g}" for d in r.dtypes)
        after = str(r.after_step) if r.after_step else "-"
        how = "-" if r.native else r.algorithm + (f" over {r.transport}" if r.transport != "auto" else "")
        rows.append([str(r.number), what, ", ".join(r.dtypes), sizes, after, r.compressor_text, width, how])
    head = ["rule", "for", "dtypes", "tensors", "after step", "compressor", "bits a value", "algorithm"]
    print_table(head, rows, right=(0,))
    print("  the first rule that takes a call is its rule; what none takes runs native")


def read_log(path: Path) -> list[tuple[Call, int, int, str]]:
    """(call, calls, ranks, why it cannot be compressed at all) of every line. Raises ValueError naming the line that is none."""
    names = {f.name for f in fields(Call)}
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            told = json.loads(line)
            call = Call(**{**{k: told[k] for k in names}, "roles": tuple(told["roles"])})
            found.append((call, int(told["calls"]), int(told["ranks"]), str(told["native"])))
        except (ValueError, KeyError, TypeError) as e:
            raise ValueError(f"{path}:{number}: not a line of a log: {e!r}") from e
    return found


def _run(policy: Policy, path: Path) -> None:
    rows, before, after, most = [], 0, 0.0, ""
    for call, calls, ranks, odd in sorted(read_log(path), key=lambda c: (c[0].roles, c[0].op, -(c[0].bytes or 0))):
        choices, why = policy.meets(call)
        why = odd or ("group of one" if ranks == 1 else "" if choices and not choices[-1][1].native else why)
        told, less = why or f"rule {choices[-1][1].number}", ""
        size = (call.bytes or 0) * calls
        before += size
        if why:
            after += size
        else:
            rule = choices[-1][1]
            ratio = TYPES[call.dtype][0] / bits(rule, call.dtype)
            told += f": {rule.compressor_text}" + (f", after step {rule.after_step}" if rule.after_step else "")
            less, after = f"{ratio:.2f}x", after + size / ratio
            if as_is := whole(rule, call.dtype):
                told += f", but for `{'`, `'.join(as_is)}` of {rule.algorithm}"
                less, most = f"up to {less}", "up to "
        role = (choices[0][0] if choices else call.roles[0] if call.roles else "") or call.desc
        op = call.op + (f".{call.direction}" if call.direction else "")
        each = _size(call.bytes) if call.bytes is not None else "parts differ"
        rows.append([role, op, call.dtype, each, f"{calls:,}", told, less])
    print_table(["role", "op", "dtype", "tensor", "calls", "what runs", "less"], rows, right=(3, 4, 6))
    if after:
        print(f"  all tensors: {_size(before)}, compressed {_size(round(after))}, {most}{before / after:.2f}x less")


def main(argv: Sequence[str] | None = None) -> int:
    """0 done, 1 the policy or the log is wrong (told on stderr), 2 the command line cannot be read."""
    try:
        args = parser().parse_args(argv)
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 2
    wrong = 0
    try:
        for path in args.files if args.verb == "check" else [args.file]:
            try:
                policy = read_policy(path)
            except CompileError as e:
                wrong = 1
                print(e, file=sys.stderr)
                continue
            if args.verb == "check":
                count = len(policy.rules)
                print(f"{path}: {count} rule{'s' * (count != 1)}, nothing wrong")
            elif args.log is not None:
                _run(policy, args.log)
            else:
                _rules(policy)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as e:
        print(f"coccl-policy: error: {e}", file=sys.stderr)
        return 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
