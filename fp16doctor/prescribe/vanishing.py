"""Constants of a script that its format rounds to 0 or to 1, and so no longer protect anything.

Must not know how a changed constant is judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fp16doctor.formats.number_format import NumberFormat, get_format
from fp16doctor.prescribe.constants import format_name, numbers
from fp16doctor.prescribe.treatable import line_target
from fp16doctor.replay.changed import changed_calls
from fp16doctor.replay.op_traits import base
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.policy import ConstantRule
from fp16doctor.schema.tape import Tape

# Ops that are given an eps: a sum with it, a bound by it.
_PROTECTING = frozenset(
    ("add", "add_", "_foreach_add", "_foreach_add_", "clamp", "clamp_", "clamp_min", "clamp_min_",
     "clamp_max", "clamp_max_", "_foreach_clamp_min_", "_foreach_maximum_")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Vanishing:
    """One constant at one place."""

    rule: ConstantRule
    site: OpSite
    format: str  # in which it vanishes

    @property
    def rounded(self) -> float:
        """What the format makes of it: 0, 1 or −1."""
        return float(round(self.rule.old))


def vanishing(tape: Tape, until: int) -> tuple[Vanishing, ...]:
    """Return the constants that vanish in ops up to index ``until``, each place once."""
    found: dict[ConstantRule, Vanishing] = {}
    for call in tape.ops[: until + 1]:
        name = format_name(call) if base(call.op) in _PROTECTING else None
        for old in numbers(call) if name is not None else ():
            new = instead(old, get_format(name)) if name is not None else None
            if new is not None and name is not None:
                rule = ConstantRule(line_target(call.site), old, new)
                found.setdefault(rule, Vanishing(rule, call.site, name))
    return tuple(found.values())


def instead(value: float, fmt: NumberFormat) -> float | None:
    """Return a constant for the same purpose that the format holds; None where it holds this one.

    For an eps the power of ten above the smallest normal number; for a bound next to 1 the
    number one ``finfo.eps`` away from it.
    """
    size = abs(value)
    if 0 < size <= fmt.underflow_threshold:
        exponent = -1
        while 10.0 ** (exponent - 1) >= fmt.smallest_normal:
            exponent -= 1
        return 10.0**exponent if value > 0 else -(10.0**exponent)
    if size < 1 and 1 - size <= fmt.eps / 4:
        return (1 - fmt.eps) if value > 0 else fmt.eps - 1
    return None


def edited(tape: Tape, found: tuple[Vanishing, ...]) -> Tape:
    """Return the step as it would be with these constants changed."""
    changed = changed_calls(tape, tuple(v.rule for v in found))
    return replace(tape, ops=tuple(changed.get(c.index, c) for c in tape.ops))


def one_by_one_and_all(found: tuple[Vanishing, ...]) -> Iterator[tuple[Vanishing, ...]]:
    """Yield each alone, then all of them."""
    yield from ((v,) for v in found)
    if len(found) > 1:
        yield found
