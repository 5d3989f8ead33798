"""Cures that move a limit which values go on rising to: what their proof does not say.

Must not know how a cure is found or tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite, log2

from fp16doctor.errors import ReplayError
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.treatable import rises
from fp16doctor.replay.heights import heights
from fp16doctor.schema.finding import RISE, Finding
from fp16doctor.schema.policy import FP32
from fp16doctor.schema.prescription import (
    GROWS_ON,
    Prescription,
    RemedyKind,
    Verdict,
    Verification,
)
from fp16doctor.schema.spelling import number

FEWEST = 6  # steps of the fp32 replay that make a trend
SURE = 2.0  # standard errors of the slope that it has to be above 0
_SAME_USE = 0.5  # of the largest amax so far: below it the place was given something else
_WIDER = (RemedyKind.DTYPE, RemedyKind.FP32_KEEP)
_LOSS = "loss after "

Points = Sequence[tuple[int, float]]


def with_rises(case: Case, found: Sequence[Prescription]) -> Iterator[Prescription]:
    """Yield the prescriptions; those that give rising values room say that they do no more.

    The loss behind them is left out: one that runs away with the values is not good or bad.
    """
    words: dict[int, str] = {}
    for prescription in found:
        proof = prescription.verification
        rising = [i for i in prescription.treats if rises(case.findings[i])]
        widens = prescription.remedy.kind in _WIDER and proof.verdict is Verdict.VERIFIED
        if not rising or not widens:
            yield prescription
            continue
        if rising[0] not in words:
            words[rising[0]] = _words(case.bench, case.findings[rising[0]])
        yield replace(prescription, verification=_told(proof, words[rising[0]]))


def _told(proof: Verification, words: str) -> Verification:
    after = {n: v for n, v in proof.after.items() if not n.startswith(_LOSS)}
    return replace(proof, reason="; ".join(filter(None, (proof.reason, words))), after=after)


def _words(bench: Bench | None, finding: Finding) -> str:
    """What is known of the rise: as recorded up to the fault, in the fp32 replay behind it."""
    per_100 = next(e.measured for e in finding.evidence if e.quantity == RISE)
    recorded = f"{number(per_100)} binades per 100 steps"
    of, points = _place(finding), _points(bench, finding)
    if not _goes_on(points):
        return f"the amax{of} rose by {recorded} up to there: more range only moves the limit"
    (first, low), (last, high) = points[0], points[-1]
    return (
        f"the amax{of} {GROWS_ON}, {number(low)} in step {first} and "
        f"{number(high)} in step {last} ({recorded} before): more range only moves the limit"
    )


def _place(finding: Finding) -> str:
    site = finding.site
    if site is None:
        return ""
    line = site.source or site.caller
    at = f"{line.file}:{line.line}" if line is not None else site.op
    return f" of `{site.module_path or at}`"


def _points(bench: Bench | None, finding: Finding) -> Points:
    """The amax at the place over the consecutive steps in fp32, where it is used as there."""
    if bench is None or finding.site is None or bench.exhausted:
        return ()
    try:
        with bench.timing():
            found = heights(bench.window, FP32, finding.site)
    except ReplayError:
        return ()
    used, top = [], 0.0
    for step, amax in found:
        top = max(top, amax) if isfinite(amax) else top
        if isfinite(amax) and amax > _SAME_USE * top:
            used.append((step, amax))
    return used


def _goes_on(points: Points) -> bool:
    """Tell whether a least-squares line through log2(amax) rises beyond its own uncertainty."""
    n = len(points)
    if n < FEWEST:
        return False
    xs, ys = [float(s) for s, _ in points], [log2(x) for _, x in points]
    mean_x, mean_y = sum(xs) / n, sum(ys) / n
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in zip(xs, ys, strict=True))
    error = float((rest / (n - 2) / spread) ** 0.5)
    return slope > SURE * error
