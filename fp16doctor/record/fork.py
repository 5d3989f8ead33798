"""Recorders in a forked process: a DataLoader's worker inherits mode and hooks, and leaves both.

Must not know what is recorded.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Leaves(Protocol):
    """Something that can stop watching without a word."""

    def leave(self) -> None:
        """Stop in a child process; nothing is handed over."""


_WATCHING: weakref.WeakSet[Leaves] = weakref.WeakSet()


def leave_when_forked(watcher: Leaves) -> None:
    """Have ``watcher.leave()`` called in every process forked off this one."""
    _WATCHING.add(watcher)


def _in_child() -> None:
    for watcher in list(_WATCHING):
        watcher.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
