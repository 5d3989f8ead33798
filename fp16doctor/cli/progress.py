"""One line that says what is being done, rewritten in place and gone before anything else is said.

Must not know what is done. While the script runs, it is drawn only during an examination, when the
script itself cannot write, and not on a terminal that shows the script's own output: a line that
the script left unfinished would be overwritten.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

_BACK_AND_CLEAR = "\r\x1b[K"  # ECMA-48: carriage return, erase to the end of the line
_EVERY_S = 0.1  # between two drawings
_EVERY_LINE_S = 1.0  # between two lines of a log


class ProgressLine:
    """Draws on a terminal, or writes whole lines where it was asked for and there is none."""

    def __init__(self, stream: TextIO, *, asked: bool, wanted: bool, width: int) -> None:
        self._stream, self._asked, self._width = stream, asked, width
        self._terminal = wanted and is_terminal(stream)
        self._beside_script = self._terminal and is_terminal(sys.stdout)
        self._process = os.getpid()
        self._shown = False
        self._last_at, self._last = -_EVERY_LINE_S, ""
        self.script_runs = False

    def tell(self, text: str) -> None:
        """Show what is done now; "" where it is over."""
        if os.getpid() != self._process:  # a child that the script forked
            return
        if not text:
            self.clear()
        elif self._wanted() and self._due():
            self._draw(text)

    def clear(self) -> None:
        """Leave the line as it was before."""
        if self._shown:
            self._shown = False
            self._write(_BACK_AND_CLEAR)

    def _wanted(self) -> bool:
        if self.script_runs and self._beside_script and not self._asked:
            return False
        return self._asked or self._terminal

    def _due(self) -> bool:
        every = _EVERY_S if self._terminal else _EVERY_LINE_S
        now = time.monotonic()
        if now - self._last_at < every and self._shown == self._terminal:
            return False
        self._last_at = now
        return True

    def _draw(self, text: str) -> None:
        if not self._terminal:
            if text != self._last:
                self._last = text
                self._write(f"fp16doctor: {text}\n")
            return
        self._shown = True
        self._write(f"{_BACK_AND_CLEAR}{_fitting(f'fp16doctor: {text}', self._width - 1)}")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # gone or closed by the script
            self._asked = self._terminal = False


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a line can be rewritten there."""
    if stream is None or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def _fitting(text: str, width: int) -> str:
    """Cut to one line: a wrapped one could not be taken back."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"
