"""A diagnosis in a few words, for one line in an interactive session.

Must not know whose line it is.
"""

from __future__ import annotations

from collections import Counter

from fp16doctor.report.wording import plural
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Finding, Severity


def counted_steps(steps: int) -> str:
    """``12 steps``."""
    return plural(steps, "step")


def told_in_short(diagnosis: Diagnosis) -> str:
    """``3 taped; 1 error, 2 notes, the first FD101 activation-overflow at train.py:12``."""
    taped = f"{sum(s.n_ops > 0 for s in diagnosis.steps)} taped"
    found = Counter(f.severity for f in diagnosis.findings)
    if not found:
        return f"{taped}; no finding"
    counts = ", ".join(plural(found[s], s.value) for s in Severity if found[s])
    return f"{taped}; {counts}, the first {_named(diagnosis.findings[0])}"


def _named(finding: Finding) -> str:
    source = finding.site and (finding.site.caller or finding.site.source)
    place = f" at {source.file}:{source.line}" if source else ""
    return f"{finding.code} {finding.name}{place}"
