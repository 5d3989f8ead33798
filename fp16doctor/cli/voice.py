"""Everything fp16doctor itself says while it scans: lines on stderr, and how wide and bright it is.

Must not know what is said, nor write to stdout: that is the script's own.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import TextIO

from fp16doctor.cli.progress import ProgressLine

_WIDEST = 120  # longer lines of prose are hard to read


class Voice:
    """Writes to the stderr of the start, even when the script has replaced ``sys.stderr``."""

    def __init__(
        self,
        *,
        quiet: bool = False,
        verbose: bool = False,
        progress: bool = False,
        speaker: str = "",
    ) -> None:
        """``speaker`` tells one of several processes that share a terminal."""
        self._stream: TextIO = sys.stderr
        self.quiet = quiet
        self.verbose = verbose
        self.progress = ProgressLine(
            self._stream, asked=progress, wanted=progress or not quiet, width=self.width
        )
        self._name = f"fp16doctor, {speaker}" if speaker else "fp16doctor"

    def say(self, text: str) -> None:
        """Write ``text``, unless fp16doctor was asked to be quiet."""
        if not self.quiet:
            self._write(text)

    def warn(self, text: str) -> None:
        """Write one line that is said under -q as well."""
        self._write(f"{self._name}: {text}")

    def fault(self, what: str, error: BaseException, *, kept: str = "") -> None:
        """Say that fp16doctor itself failed, and what is there all the same.

        Args:
            what: what was tried, e.g. ``rendering the page``.
            error: what was met; its traceback is shown under -v.
            kept: what the reader still has, or can do.
        """
        rest = f"; {kept}" if kept else ""
        self.warn(f"{what} failed: {describe_fault(error)}{rest}  [internal-error]")
        if self.verbose:
            lines = traceback.format_exception(type(error), error, error.__traceback__, limit=-5)
            self._write("".join(lines).rstrip())

    @property
    def color(self) -> bool:
        """Whether colours are wanted: by a person at a terminal, or by FORCE_COLOR.

        NO_COLOR is asked first (https://no-color.org, https://force-color.org).
        """
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
            return True
        if os.environ.get("TERM") == "dumb":
            return False
        try:
            return self._stream.isatty()
        except ValueError:  # closed by the script
            return False

    @property
    def width(self) -> int:
        """Columns to wrap at: the terminal's up to 120, 100 where there is none."""
        columns = os.environ.get("COLUMNS", "")
        if columns.isdecimal() and int(columns) > 0:
            return min(int(columns), _WIDEST)
        try:
            return min(os.get_terminal_size(self._stream.fileno()).columns or 100, _WIDEST)
        except (OSError, ValueError):
            return 100

    def _write(self, text: str) -> None:
        self.progress.clear()
        for stream in (self._stream, sys.__stderr__):
            try:
                if stream is not None:
                    stream.write(f"{text}\n")
                    stream.flush()
                    return
            except (OSError, ValueError):  # gone or closed: the run must not end on that
                continue


def describe_fault(error: BaseException) -> str:
    """One line on an unexpected exception: its type and text, and the line it came from."""
    text = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
