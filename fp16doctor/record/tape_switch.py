"""Enters the dispatch mode for the steps that are taped, and leaves it for the others.

A mode costs on every op, so that a step that is not taped runs without it. Must not know which
steps are wanted, or why.
"""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


class TapeSwitch:
    """``on`` says whether ops are taped now."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._depth = 0  # other modes below ours
        self.on = False

    def start(self, *, wanted: bool) -> None:
        """Begin, inside whatever modes the script has entered itself."""
        self._depth = len(_modes())
        self.set(wanted=wanted)

    def set(self, *, wanted: bool) -> None:
        """Enter or leave the mode where that is possible, else stay.

        Modes are a stack: inside a mode that the script entered later, ours can neither be left
        (it is not on top) nor entered (the script would leave ours instead of its own).
        """
        modes = _modes()
        if wanted and not self.on and len(modes) == self._depth:
            self._mode.__enter__()
            self.on = True
        elif not wanted and self.on and modes and modes[-1] is self._mode:
            self._leave()

    def stop(self) -> None:
        """Leave for good."""
        if self.on:
            self._leave()

    def _leave(self) -> None:
        self._mode.__exit__(None, None, None)
        self.on = False


def _modes() -> list[Any]:
    stack: list[Any] = _get_current_dispatch_mode_stack()
    return stack
