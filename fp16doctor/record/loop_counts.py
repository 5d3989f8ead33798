"""What the script's own loops count to while a step is taken: ``epoch`` 2, ``i`` 30.

Only loops of a script's top level: to look at a function's variables would keep them alive.

Must not know steps.
"""

from __future__ import annotations

import ast
import linecache
import warnings
from types import FrameType

Loop = tuple[int, int, str]  # first and last line, variable
Counts = tuple[tuple[str, int], ...]


class LoopCounts:
    """The loops of each file, read once."""

    def __init__(self) -> None:
        self._loops: dict[str, tuple[Loop, ...]] = {}

    def at(self, frame: FrameType | None) -> Counts:
        """Return (variable, value) of all loops around a frame or its callers, outermost first."""
        while frame is not None and frame.f_code.co_name != "<module>":
            frame = frame.f_back
        if frame is None or frame.f_globals.get("__name__") != "__main__":
            return ()
        file = frame.f_code.co_filename
        if file not in self._loops:
            self._loops[file] = loops_in("".join(linecache.getlines(file)))
        line, values = frame.f_lineno, frame.f_globals
        names = [name for first, last, name in self._loops[file] if first <= line <= last]
        return tuple((n, values[n]) for n in names if type(values.get(n)) is int)


def loops_in(text: str) -> tuple[Loop, ...]:
    """Return the loops of a text whose variable counts: ``for i in``, ``for i, x in``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser's, on escapes: the run has shown its own
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()
    found = [
        (node.lineno, node.end_lineno or node.lineno, name)
        for node in ast.walk(tree)
        if isinstance(node, ast.For) and (name := _counter(node.target))
    ]
    return tuple(sorted(found))


def _counter(target: ast.expr) -> str:
    if isinstance(target, ast.Tuple) and target.elts:
        target = target.elts[0]
    return target.id if isinstance(target, ast.Name) else ""
