"""Gives another eps of an optimizer as a diff of the line that makes the optimizer.

Must not know why the number is changed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.patch import Edit, diff, swap, with_argument
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.torch_words import DEFAULT_EPS, optimizer_name
from fp16doctor.diagnose.script_reading.training import optimizer_call
from fp16doctor.diagnose.script_reading.tree import keyword, receiver
from fp16doctor.schema.prescription import Remedy

# As a remedy names an option of an optimizer by the line of its step.
_NAMED = re.compile(
    r"\A# where the optimizer stepped at (?P<file>.+):(?P<line>\d+) is made: "
    r"pass (?P<new>\S+) for what is (?P<old>\S+)\Z"
)


def in_optimizer(remedy: Remedy, script: Script) -> str:
    """Return the diff, "" where the remedy is no such change or the text leaves a doubt."""
    found = _NAMED.match(remedy.change.strip())
    if found is None or found["file"] != script.path:
        return ""
    made = {m for s in _stepped(script, int(found["line"])) for m in [optimizer_call(script, s)]}
    if len(made) != 1:
        return ""
    (call,) = made
    edits = [] if call is None else _with_eps(script, call, float(found["old"]), found["new"])
    return diff(script.path, script.lines, edits)


def _stepped(script: Script, line: int) -> Iterator[ast.expr]:
    """Yield the optimizers that a line steps, by themselves or by a scaler."""
    for call in script.methods("step"):
        statement = script.tree.statement(call)
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            given = call.args[0] if call.args else None
            is_made = given is not None and optimizer_call(script, given) is not None
            yield given if given is not None and is_made else receiver(call)


def _with_eps(script: Script, call: ast.Call, old: float, new: str) -> list[Edit]:
    if any(k.arg is None for k in call.keywords) or len(call.args) > 2:
        return []
    eps, told = keyword(call, "eps"), _short(new)
    if eps is not None:
        return swap(script.lines, (eps, told)) if script.number(eps) == old else []
    default = DEFAULT_EPS.get(optimizer_name(script.name(call)))
    return [with_argument(script.lines, call, f"eps={told}")] if default == old else []


def _short(number: str) -> str:
    """``1e-4`` for ``0.0001``, where that is the same number."""
    told = f"{float(number):.0e}".replace("e-0", "e-")
    return told if float(told) == float(number) < 1e-2 else number
