"""What a policy says, and which rule a call meets: a pure function of what all ranks of the call know."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

# Parallel dimensions: data, sharded data, tensor, pipeline, expert, context.
ROLES = ("dp", "fsdp", "tp", "pp", "ep", "cp")
# `send` is decided once for the sender and the receiver.
CALL_OPS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "send")
DIRECTIONS = ("forward", "backward")
ANY = "*"
NATIVE = "native"
# Norms, losses and votes are small, and have no use for compression.
MIN_BYTES = 4096


@dataclass(frozen=True)
class Call:
    """One kind of call. roles: what its group may be, likeliest first. bytes: of the input in its dtype; None where ranks may differ
    (all_to_all, whose pairs differ). desc: the group's description."""

    roles: tuple[str, ...]
    op: str
    dtype: str
    bytes: int | None
    direction: str = ""
    desc: str = ""


@dataclass(frozen=True)
class Selector:
    """`ROLE[.OP[.DIRECTION]]`; `*` is any. Any op is not broadcast, which carries weights and buffers: it has to be named."""

    role: str
    op: str = ANY
    direction: str = ANY

    def __str__(self) -> str:
        parts = [self.role, self.op, self.direction]
        while len(parts) > 1 and parts[-1] == ANY:
            parts.pop()
        return ".".join(parts)

    def takes(self, role: str, op: str, direction: str) -> bool:
        any_op = self.op == ANY and op != "broadcast"
        return self.role in (ANY, role) and (any_op or self.op == op) and self.direction in (ANY, direction)

    def covers(self, other: Selector) -> bool:
        if self.op == ANY and other.op == "broadcast":
            return False
        pairs = ((self.role, other.role), (self.op, other.op), (self.direction, other.direction))
        return all(a in (ANY, b) for a, b in pairs)


@dataclass(frozen=True)
class Rule:
    """One rule.

    number      from 1, as in messages; line in the text
    on          what it is for; group: a pattern that the whole of the group's description has to match, or None
    dtypes      names of the tensors' dtypes (f32, bf16, f16)
    min_bytes   smaller tensors go native; for all_to_all, smaller parts go raw
    max_bytes   larger tensors are not this rule's, or None
    after_step  the first step (or call of a kind) that the rule is for
    compressor  "native", a compressor, or (name in the algorithm, compressor) pairs
    transport   auto, symm or torch
    stateful    its compressor keeps a state
    """

    number: int
    line: int
    on: tuple[Selector, ...]
    group: str | None
    dtypes: tuple[str, ...]
    min_bytes: int
    max_bytes: int | None
    after_step: int
    compressor: str | tuple[tuple[str, str], ...]
    algorithm: str
    transport: str
    stateful: bool = False

    @property
    def native(self) -> bool:
        return self.compressor == NATIVE

    @property
    def compressor_text(self) -> str:
        if isinstance(self.compressor, str):
            return self.compressor
        return ", ".join(f"{k}={v}" for k, v in self.compressor)

    def role_of(self, call: Call) -> str | None:
        """Which of the call's roles the rule is for; None where it is for none. Sizes, dtypes and steps are not looked at."""
        if self.group is not None and not re.fullmatch(self.group, call.desc):
            return None
        for role in call.roles or ("",):
            if any(s.takes(role, call.op, call.direction) for s in self.on):
                return role
        return None

    def may_take(self, call: Call) -> bool:
        """Whether it can be for a call of this op and these roles, of any direction, dtype and size."""
        ways = (call.direction,) if call.direction else ("", *DIRECTIONS)
        return any(self.role_of(replace(call, direction=way)) is not None for way in ways)

    def misses(self, call: Call) -> str:
        """Why the rule, which is for the call's role and op, does not take it; "" where it does."""
        if call.dtype not in self.dtypes:
            return f"rule {self.number} is not for {call.dtype}"
        if call.bytes is not None and call.bytes < self.min_bytes:
            return f"below min_bytes of rule {self.number}"
        if call.bytes is not None and self.max_bytes is not None and call.bytes > self.max_bytes:
            return f"above max_bytes of rule {self.number}"
        return ""


@dataclass(frozen=True)
class Policy:
    """arena_mib: wire memory of a group. steps: what after_step counts, "calls" of one kind or "step()". debug: compare every call's op,
    dtype and count between ranks. debug_every: every n-th call of a kind also runs natively, for its error; 0 never. log: a file for every
    kind of call, or None. texts: digests of the algorithms and compressors that are named. problem: why the file could not be read, if so."""

    text: str
    name: str
    rules: tuple[Rule, ...]
    arena_mib: int = 256
    steps: str = "calls"
    debug: bool = False
    debug_every: int = 0
    log: str | None = None
    texts: tuple[tuple[str, str], ...] = ()
    problem: str = ""

    @property
    def idle(self) -> bool:
        """Nothing to do, so nothing is installed."""
        return not self.rules and self.log is None and not self.debug and not self.problem

    @property
    def ops(self) -> frozenset[str]:
        """What any rule may take, or has to be looked at for the log or for debugging."""
        if self.log or self.debug:
            return frozenset(CALL_OPS)
        return frozenset(
            op for op in CALL_OPS if any(s.takes(s.role, op, s.direction) for r in self.rules for s in r.on)
        )

    def rule_of(self, role: str, op: str) -> Rule | None:
        """The first rule for a role's op, whatever its sizes."""
        return next((r for r in self.rules if any(s.takes(role, op, "") for s in r.on)), None)

    def meets(self, call: Call) -> tuple[tuple[tuple[str, Rule], ...], str]:
        """The rules that may take the call, in order, each with the role it sees: the first whose after_step has come is it. The list ends
        with the first rule that waits for no step. Also why nothing does, for the report, where the list is empty."""
        found: list[tuple[str, Rule]] = []
        why = ""
        for rule in self.rules:
            role = rule.role_of(call)
            if role is None:
                continue
            missed = rule.misses(call)
            if missed:
                why = why or missed
                continue
            found.append((role, rule))
            if rule.after_step == 0:
                break
        return tuple(found), why or "no rule"

    def fields(self) -> dict[str, str]:
        """What ranks compare: a name for each thing that may differ."""
        made = {
            "policy: file": self.problem or "read",
            "policy: arena_mib": str(self.arena_mib),
            "policy: steps": self.steps,
            "policy: debug": f"{self.debug}, every {self.debug_every}",
            "policy: number of rules": str(len(self.rules)),
        }
        for r in self.rules:
            where = f"policy: rule {r.number}"
            made[f"{where} on"] = ", ".join(map(str, r.on))
            for name in (
                "group",
                "dtypes",
                "min_bytes",
                "max_bytes",
                "after_step",
                "compressor_text",
                "algorithm",
                "transport",
            ):
                made[f"{where} {name.removesuffix('_text')}"] = str(getattr(r, name))
        made |= {f"text of {name}": digest for name, digest in self.texts}
        return made
