"""Names that hold something else for a while, and are put back.

Must not know what for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_NOTHING: Any = object()


class Replacing:
    """What was replaced, until ``restore``."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Have ``owner.name`` be ``value``; a name that a base class has is put back by deleting.

        What others put there meanwhile stays when it is put back.
        """
        before = vars(owner).get(name, _NOTHING)

        def undo() -> None:
            if vars(owner).get(name) is not value:
                return
            if before is _NOTHING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        setattr(owner, name, value)
        self._undo.append(undo)

    def restore(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()()
