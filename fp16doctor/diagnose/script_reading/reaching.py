"""Which assignment a name certainly holds the value of where it is read.

Must not know what the value means.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.order import always_before
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.tree import position

Assignment = ast.Assign | ast.AnnAssign | ast.AugAssign


def assignment(script: Script, name: ast.Name) -> Assignment | None:
    """The last assignment to ``name`` alone before it is read, in the same function and turn.

    None where another binding may come between, or nothing is assigned before.
    """
    here = script.place(name)
    bound = [(_done(script, b), b) for b in _binders(script, name)]
    _, last = max((pair for pair in bound if pair[0] < here.at), default=((0, 0), None), key=_first)
    statement = None if last is None else script.tree.statement(last)
    if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return None
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    plain = all(isinstance(t, ast.Name) for t in targets)
    before = script.place(statement)
    turning = set(here.loops) - set(before.loops)
    changed = any(turning & set(script.place(b).loops) for _, b in bound)
    return statement if plain and not changed and always_before(before, here) else None


def _first(pair: tuple[tuple[int, int], ast.Name | None]) -> tuple[int, int]:
    return pair[0]


def _done(script: Script, store: ast.Name) -> tuple[int, int]:
    """Where the name holds its value: behind an assignment, at once in any other statement."""
    statement = script.tree.statement(store)
    whole = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign))
    return position(statement if whole else store)


def _binders(script: Script, name: ast.Name) -> Iterator[ast.Name]:
    """The places in the function that bind the name."""
    function = script.tree.function(name)
    return (n for n in script.stores.get(name.id, ()) if script.tree.function(n) is function)
