"""What a script calls an object: the variables that hold it.

Must not know what kind of object it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from inspect import CO_OPTIMIZED
from types import FrameType

_DEPTH = 16  # frames between a call and the function whose variable is called, ours included
_FOREIGN = ("torch", "fp16doctor")


def variables_beside(value: object) -> dict[str, object]:
    """Return the public variables of the namespace that holds ``value``, {} where none does.

    Looked at are the script itself, then the modules and at last the functions that are running.
    """
    for space in _spaces():
        if any(v is value for v in list(space.values())):
            return {n: v for n, v in list(space.items()) if not n.startswith("_")}
    return {}


def _spaces() -> Iterator[Mapping[str, object]]:
    yield getattr(sys.modules.get("__main__"), "__dict__", {})
    frames = tuple(_frames())
    for frame in frames:
        yield frame.f_globals
    for frame in frames:
        if frame.f_code.co_flags & CO_OPTIMIZED:
            yield _locals_of(frame)


def _locals_of(frame: FrameType) -> dict[str, object]:
    """Return a function's variables, and leave no copy of them that would keep them alive.

    Before Python 3.13 a look at ``f_locals`` fills a dict that lives as long as the call; it is
    filled anew by the next look.
    """
    seen = frame.f_locals
    found = dict(seen)
    if type(seen) is dict:
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            seen.pop(name, None)
    return found


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            return
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _FOREIGN:
            yield frame
        frame = frame.f_back
