"""Proposes the change of code that a finding advises.

Must not know how the advice was found (``diagnose``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp16doctor.prescribe.treatable import demanding, target
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.prescription import Remedy, RemedyKind


def propose(findings: Sequence[Finding]) -> Iterator[tuple[Remedy, tuple[int, ...]]]:
    """One change for every finding that demands action and advises something."""
    for position, finding in demanding(findings):
        if not finding.advice:
            continue
        places = () if finding.site is None else _line(finding)
        yield Remedy(RemedyKind.CODE_FIX, finding.advice, target=places), (position,)


def _line(finding: Finding) -> tuple[str, ...]:
    """The line to change: the one where the reason lies, where it is known."""
    site = finding.cause_site or finding.site
    if site is None:
        return ()
    line = site.caller or site.source
    return (target(site),) if line is None else (f"line:{line.file}:{line.line}",)
