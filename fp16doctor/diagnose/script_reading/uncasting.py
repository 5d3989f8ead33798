"""Casts of a model to 16 bits taken out of a script's text.

Must not know why they are taken out.
"""

from __future__ import annotations

import ast

from fp16doctor.diagnose.script_reading.amp import dtype_of
from fp16doctor.diagnose.script_reading.patch import Edit, is_alone, remove, swap
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.tree import method, receiver, spelled


def uncast(script: Script, casts: list[ast.Call]) -> list[Edit]:
    """The casts taken out: whole statements, or the end of a chain."""
    found = []
    for call in casts:
        statement = script.tree.statement(call)
        left, text = _beside_dtype(script, call), script.source(receiver(call))
        if left:
            found += swap(script.lines, (call, f"{text}.{method(call)}({', '.join(left)})"))
        elif is_alone(statement, call) or _rebinds(statement, call):
            found.append(remove(script.lines, statement))
        else:
            found += swap(script.lines, (call, text))
    return found


def _beside_dtype(script: Script, call: ast.Call) -> list[str]:
    """What ``x.to(device, torch.half)`` is given beside the format."""
    if method(call) not in ("to", "type"):
        return []
    others = [a for a in call.args if dtype_of(script, a) is None]
    named = [k for k in call.keywords if k.arg != "dtype" and dtype_of(script, k.value) is None]
    if not others and not any(k.arg == "device" for k in named):
        return []
    return [*map(script.source, others), *(f"{k.arg}={script.source(k.value)}" for k in named)]


def _rebinds(statement: ast.stmt, call: ast.Call) -> bool:
    """``model = model.half()``, which binds the name to what it has already."""
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return False
    return [spelled(t) for t in statement.targets] == [spelled(receiver(call))]
