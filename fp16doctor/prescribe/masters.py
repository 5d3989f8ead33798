"""Which findings are of the 16-bit state that an optimizer keeps beside 16-bit parameters.

Parameters in fp32 are the cure of all of them at once: what the optimizer keeps follows them.

Must not know how that is tried.
"""

from __future__ import annotations

from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.stored import trains_half_parameters
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.location import Phase

_STATE = frozenset(("FD203", "FD302"))  # it underflows, it does not take its updates
_WEIGHTS = "FD301"
_STEP = ".step("  # how a line reads that makes an optimizer take its step


def treated(case: Case) -> tuple[int, ...]:
    """Return the positions of these findings, with that of lost weight updates; () for none."""
    if case.bench is None or not any(map(trains_half_parameters, case.bench.tapes)):
        return ()
    born = {i for i, f in case.of_precision if _in_the_step(f)}
    state = {i for i, f in case.demanding if f.code in _STATE and _in_the_step(f)}
    if not born | state:
        return ()
    weights = {i for i, f in case.demanding if f.code == _WEIGHTS}
    return tuple(sorted(born | state | weights))


def _in_the_step(finding: Finding) -> bool:
    """Tell whether it arose in an optimizer's step, not in an average that the script keeps."""
    site = finding.site
    if site is None or site.phase is not Phase.OPTIMIZER:
        return False
    lines = (site.source, site.caller)
    return any(_STEP in (line.text or "") for line in lines if line is not None)
