"""The seconds that may go into trials, and what was left untried when they were spent.

Must not know what is tried.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class TimeBudget:
    """Counts what is done inside ``timing``."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._spent = 0.0
        self._since: float | None = None
        self._left: dict[str, None] = {}

    @property
    def left_s(self) -> float:
        """Seconds that are not spent, at this moment."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return max(self.seconds - self._spent - running, 0.0)

    @property
    def over(self) -> bool:
        """They are spent."""
        return self.left_s <= 0

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Count what is done inside; what is counted already is not counted twice."""
        if self._since is not None:
            yield
            return
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self._spent += time.perf_counter() - self._since
            self._since = None

    def leave(self, what: str) -> None:
        """Note what was not tried for want of time."""
        self._left[what] = None

    @property
    def untried(self) -> tuple[str, ...]:
        """What was left, in the order in which it was asked for."""
        return tuple(self._left)
