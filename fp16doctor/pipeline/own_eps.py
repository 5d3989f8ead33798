"""Gives another eps as a diff: where the optimizer is made, or in the call that has it by default.

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
_IN_CALL = re.compile(
    r"\A# (?P<file>.+):(?P<line>\d+): pass (?P<new>\S+) for what is (?P<old>\S+) in this call\Z"
)
# Functions of torch.nn.functional -> the eps that they have by default, which is not positional.
_EPS = {"normalize": 1e-12, "cosine_similarity": 1e-8, "pairwise_distance": 1e-6,
        "layer_norm": 1e-5, "group_norm": 1e-5, "batch_norm": 1e-5}  # fmt: skip


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


def in_call(remedy: Remedy, script: Script) -> str:
    """Return the diff of the one call of a line that has the number by default, "" in doubt."""
    found = _IN_CALL.match(remedy.change.strip())
    if found is None or found["file"] != script.path:
        return ""
    line, old, made = int(found["line"]), float(found["old"]), []
    for call in script.calls:
        statement = script.tree.statement(call)
        if statement.lineno <= line <= (statement.end_lineno or 0):
            module, _, name = script.name(call).rpartition(".")
            if module == "torch.nn.functional" and _EPS.get(name) == old:
                made.append(call)
    if len(made) != 1 or not _takes_eps(made[0]):
        return ""
    edit = with_argument(script.lines, made[0], f"eps={_short(found['new'])}")
    return diff(script.path, script.lines, [edit])


def _takes_eps(call: ast.Call) -> bool:
    """Tell whether a call has no eps yet: neither by name nor, fourth or later, by position."""
    given = {k.arg for k in call.keywords}
    return not given & {"eps", None} and len(call.args) < 4


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
