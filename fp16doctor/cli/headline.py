"""The one line on a scan's leading finding, said once: it is what went wrong, under -q as well.

Must not know the rest of a report, nor when it is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fp16doctor.cli.voice import Voice
from fp16doctor.schema.finding import Finding, Severity

if TYPE_CHECKING:
    from fp16doctor.schema.diagnosis import Diagnosis


class Headline:
    """Says ``error FD101 activation-overflow: …``, and remembers what it said."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._told = ""

    def at_once(self, diagnosis: Diagnosis, seen_in: str) -> None:
        """Say it while the script runs; ``seen_in`` names the page, "" where none was written."""
        if diagnosis.findings:
            self._told = _line(diagnosis.findings[0])
            self._voice.warn(self._told + (f"; the report so far: {seen_in}" if seen_in else ""))

    def at_the_end(self, diagnosis: Diagnosis) -> None:
        """Under -q, in place of the report: a leading error or warning that was not said yet."""
        leading = next(iter(diagnosis.findings), None)
        if not self._voice.quiet or leading is None or leading.severity is Severity.NOTE:
            return
        if _line(leading) != self._told:
            self._voice.warn(_line(leading))


def _line(finding: Finding) -> str:
    return f"{finding.severity.value} {finding.code} {finding.name}: {finding.what}"
