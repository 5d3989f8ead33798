"""The lines of source that stand around those a finding names.

Must not know how a line is found (``record``) or shown (``report``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from fp16doctor.schema.finding import Finding
from fp16doctor.schema.location import SourceContext, SourceLine

Around = Callable[[SourceLine], SourceContext | None]


def contexts_of(findings: Iterable[Finding], around: Around) -> tuple[SourceContext, ...]:
    """Return one context for each line that a finding sends the reader to, in that order."""
    lines = dict.fromkeys((line.file, line.line, line) for f in findings for line in _lines(f))
    found = {(file, number): around(line) for file, number, line in lines}
    return tuple(context for context in found.values() if context is not None)


def _lines(finding: Finding) -> Iterator[SourceLine]:
    for site in (finding.site, finding.cause_site):
        for line in () if site is None else (site.source, site.caller):
            if line is not None:
                yield line
