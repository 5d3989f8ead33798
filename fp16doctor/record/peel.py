"""Reads tracebacks as the user sees them: without fp16doctor's frames, down to the user's own line.

Must not know how the exception came about or what is done with it (``record.script``).
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections.abc import Iterator
from types import CodeType, TracebackType

from fp16doctor.record.notebook import cell_of
from fp16doctor.schema.location import SourceLine

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
# Frames torch puts between the user's call and a mode of ours, and between it and the kernel:
# they are there only because the mode is.
_PLUMBING_ABOVE = ("_compile.py", os.path.join("_dynamo", "eval_frame.py"), "overrides.py")
_PLUMBING_BELOW = ("_ops.py",)


def chain(exception: BaseException) -> Iterator[BaseException]:
    """The exception and all that a traceback shows with it: causes, contexts, group members."""
    waiting, seen = [exception], set[int]()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        related = [current.__cause__, current.__context__, *getattr(current, "exceptions", ())]
        waiting.extend(other for other in related if other is not None)


def peel(exception: BaseException) -> None:
    """Take fp16doctor's frames out of the tracebacks of ``exception`` and of its whole chain.

    A traceback that has no other frames is left as it is: it shows a fault of fp16doctor itself.
    """
    for link in chain(exception):
        steps = list(_steps(link.__traceback__))
        kept = [step for step, keep in zip(steps, _visible(steps), strict=True) if keep]
        if kept and len(kept) < len(steps):
            link.__traceback__ = _relinked(kept)


def user_line(exception: BaseException, folder: str) -> SourceLine | None:
    """The innermost line of the user's code in the traceback, None where there is none.

    Args:
        exception: with its traceback.
        folder: the script's folder; files below it are named relative to it.
    """
    found: TracebackType | None = None
    libraries = _library_folders(folder)
    for step in _steps(exception.__traceback__):
        if _is_users(step.tb_frame.f_code.co_filename, folder, libraries):
            found = step
    return None if found is None else _source_line(found, folder)


def _steps(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _visible(steps: list[TracebackType]) -> list[bool]:
    files = [step.tb_frame.f_code.co_filename for step in steps]
    visible = [not _below(file, _PACKAGE) for file in files]
    for position in [i for i, keep in enumerate(visible) if not keep]:
        above, below = position - 1, position + 1
        while above >= 0 and visible[above] and _is_plumbing(files[above], _PLUMBING_ABOVE):
            visible[above] = False
            above -= 1
        while below < len(files) and _is_plumbing(files[below], _PLUMBING_BELOW):
            visible[below] = False
            below += 1
    return visible


def _is_plumbing(file: str, names: tuple[str, ...]) -> bool:
    return file.endswith(tuple(os.path.join("torch", name) for name in names))


def _relinked(steps: list[TracebackType]) -> TracebackType:
    """New objects, since the old ones may be shared with an exception the script still holds."""
    following: TracebackType | None = None
    for step in reversed(steps):
        following = TracebackType(following, step.tb_frame, step.tb_lasti, step.tb_lineno)
    assert following is not None, "called with at least one step"
    return following


def _library_folders(folder: str) -> tuple[str, ...]:
    """Folders of code the user did not write; one that holds the script itself does not count."""
    paths = sysconfig.get_paths()
    candidates = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    torch = sys.modules.get("torch")
    if torch is not None and torch.__file__:
        candidates.append(os.path.dirname(torch.__file__))
    others = [os.path.realpath(each) for each in candidates]
    return (os.path.realpath(_PACKAGE), *(each for each in others if not _below(folder, each)))


def _is_users(file: str, folder: str, libraries: tuple[str, ...]) -> bool:
    if file.startswith("<"):  # <frozen importlib>, <string>
        return False
    real = os.path.realpath(file)
    if any(_below(real, library) for library in libraries):
        return False
    inside = os.path.relpath(real, folder) if _below(real, folder) else real
    return not {"site-packages", "dist-packages"} & set(inside.split(os.sep))


def _below(file: str, folder: str) -> bool:
    return file.startswith(folder.rstrip(os.sep) + os.sep)


def _source_line(step: TracebackType, folder: str) -> SourceLine:
    code, line = step.tb_frame.f_code, step.tb_lineno
    real = os.path.realpath(code.co_filename)
    text = linecache.getline(code.co_filename, line, step.tb_frame.f_globals).strip()
    return SourceLine(
        file=cell_of(code.co_filename)
        or (os.path.relpath(real, folder) if _below(real, folder) else real),
        line=line,
        function=_qualified_name(code),
        text=text or None,
    )


def _qualified_name(code: CodeType) -> str:
    name: str = getattr(code, "co_qualname", code.co_name)  # co_qualname is new in Python 3.11
    return name
