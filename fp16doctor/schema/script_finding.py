"""A mistake that a script's source shows, without any run of it.

Must not know how scripts are read (``diagnose``) or findings are worded on a page (``report``).
"""

from __future__ import annotations

from dataclasses import dataclass

from fp16doctor.schema.finding import Severity


@dataclass(frozen=True, slots=True)
class ScriptFinding:
    """One suspicion, at one line of one file."""

    code: str      # FD701
    name: str      # clipped-before-unscale; shared with the rule that sees the same fault in a run
    severity: Severity
    what: str      # one line, a fact, lower case, no final stop
    reason: str    # one or two sentences: the mechanism
    file: str      # as it was named on the command line
    line: int      # 1-based
    column: int    # 1-based, in characters
    function: str  # qualified name of the enclosing function, "<module>" at top level
    text: str      # the line as written, stripped
    advice: str    # the right form in words, imperative
    fix: str = ""  # the right form as a unified diff of the script's own lines


@dataclass(frozen=True, slots=True)
class UnreadScript:
    """A file that could not be read as Python."""

    file: str
    line: int    # 1-based; 0 where the file as a whole could not be read
    reason: str  # what was met, one line
