"""Which assignment a name certainly holds the value of where it is read.

Must not know what the value means.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.order import always_before
from fp16doctor.diagnose.script_reading.script import Script

Assignment = ast.Assign | ast.AnnAssign | ast.AugAssign


def assignment(script: Script, name: ast.Name) -> Assignment | None:
    """The last assignment to ``name`` alone before it is read, in the same function and turn.

    None where another binding may come between, or nothing is assigned before.
    """
    here = script.place(name)
    before = [b for b in _binders(script, name) if script.place(b).at < here.at]
    last = max(before, key=lambda b: script.place(b).at, default=None)
    if not isinstance(last, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return None
    targets = last.targets if isinstance(last, ast.Assign) else [last.target]
    plain = all(isinstance(t, ast.Name) for t in targets)
    return last if plain and always_before(script.place(last), here) else None


def _binders(script: Script, name: ast.Name) -> Iterator[ast.AST]:
    """Statements of the function that bind the name."""
    function = script.tree.function(name)
    for node in script.stores.get(name.id, ()):
        if script.tree.function(node) is function:
            yield script.tree.statement(node)
