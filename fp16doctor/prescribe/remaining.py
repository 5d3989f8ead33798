"""Whether the place that a finding names still makes inf or NaN under a candidate.

Finite sinks do not tell: a later op may have made the infinity finite, as dividing by it does. Nor
does the op: with other values it is the next one of the line. What fp32 makes there is meant to be.
Must not know how a candidate is tried.
"""

from __future__ import annotations

from collections.abc import Sequence

from fp16doctor.prescribe.treatable import of_precision
from fp16doctor.replay.trial import Trial
from fp16doctor.schema.finding import Fault, Finding
from fp16doctor.schema.location import OpSite, SourceLine

Place = tuple[str | None, SourceLine | None]  # module path and line: the same in every step
_BIRTHS = (Fault.OVERFLOW, Fault.NAN_BIRTH)


def faults_of(findings: Sequence[Finding]) -> frozenset[Place]:
    """Return the places of all inf and NaN that a wider format has to take away."""
    born = [f for _, f in of_precision(findings) if f.fault in _BIRTHS]
    return frozenset(_place(s) for f in born for s in (f.site, *f.repeats) if s is not None)


def remaining(trial: Trial, reference: Trial, faults: frozenset[Place]) -> str:
    """Return that one is still there, "" where none is."""
    meant = {(site.op, _place(site)) for site in reference.births}
    born = (s for s in trial.births if _place(s) in faults and (s.op, _place(s)) not in meant)
    still = next(born, None)
    if still is None:
        return ""
    line = still.source or still.caller
    where = f" at {line.file}:{line.line}" if line is not None else ""
    return f"`{still.op}`{where} makes inf or NaN there"


def _place(site: OpSite) -> Place:
    return site.module_path, site.source
