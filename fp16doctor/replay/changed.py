"""Calls of a tape with other numbers than the script's: the change that an edit of a line makes.

Must not know why a number is changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fp16doctor.replay.keep import covers
from fp16doctor.schema.policy import ConstantRule, KeepRule
from fp16doctor.schema.tape import OpCall, Tape


def changed_calls(tape: Tape, rules: tuple[ConstantRule, ...]) -> dict[int, OpCall]:
    """Return op index -> the call with changed numbers, for every op that a rule changes."""
    found: dict[int, OpCall] = {}
    for rule in rules:
        place = KeepRule(rule.pattern)
        for call in tape.ops:
            known = found.get(call.index, call)
            if covers(place, call.site) and holds(call, rule.old):
                found[call.index] = _with(known, rule)
    return found


def holds(call: OpCall, number: float) -> bool:
    """Tell whether a number is among the arguments of a call, lists of sizes left out."""
    return any(_is(v, number) for v in (*call.args, *call.kwargs.values()))


def _with(call: OpCall, rule: ConstantRule) -> OpCall:
    args = tuple(_put(v, rule) for v in call.args)
    return replace(call, args=args, kwargs={k: _put(v, rule) for k, v in call.kwargs.items()})


def _put(value: Any, rule: ConstantRule) -> Any:
    return rule.new if _is(value, rule.old) else value


def _is(value: Any, number: float) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool and value == number
