"""How near a run without a fault came to the largest value of its number format.

Must not know what a reader is told beside it (``answer``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fp16doctor.report import wording
from fp16doctor.schema import spelling
from fp16doctor.schema.diagnosis import Diagnosis, FormatLimits
from fp16doctor.schema.ranges import ModuleRanges

_RAN = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}  # narrowest range first
_ROLES = {"output": "output", "grad_output": "gradient"}
_STEADY = 0.5  # binades: less is no trend


@dataclass(frozen=True, slots=True)
class _Seen:
    """The largest finite magnitude of one module and role in one step that was taken."""

    amax: float
    step: int
    ranges: ModuleRanges


def nearest_limit(diagnosis: Diagnosis) -> str:
    """``nearest to a limit: the output of `fc` reaches 8.7 at step 49, the fp16 maximum is …``.

    Steps that the scaler skipped do not count: it looks for the limit by going over it. "" where
    no magnitudes were surveyed.
    """
    limits = narrowest(diagnosis)
    if limits is None:
        return ""
    seen = [s for s in _seen(diagnosis) if s.amax <= limits.max]  # beyond it: a wider format's
    if not seen:
        return ""
    worst = max(seen, key=lambda s: s.amax)
    course = sorted((s for s in seen if s.ranges is worst.ranges), key=lambda s: s.step)
    role = _ROLES[worst.ranges.role.partition("[")[0]]
    place = spelling.module(worst.ranges.module_path or "root module", worst.ranges.module_class)
    reach = f"the {role} of {place} reaches {wording.number(worst.amax)} at step {worst.step}"
    against = f"the {limits.name} maximum is {wording.limit(limits.max)}"
    room = f"headroom {wording.headroom(worst.amax, limits)}"
    return f"nearest to a limit: {reach}, {against} ({room}{_trend(course, limits)})"


def narrowest(diagnosis: Diagnosis) -> FormatLimits | None:
    """The limits of the format with the smallest maximum among those that ops ran in."""
    ran = {name for name, _ in diagnosis.run.ops_by_dtype}
    known = {f.name: f for f in diagnosis.formats}
    return next((known[n] for n, dtype in _RAN.items() if dtype in ran and n in known), None)


def _seen(diagnosis: Diagnosis) -> Iterator[_Seen]:
    skipped = {s.step for s in diagnosis.steps if s.skipped}
    for ranges in diagnosis.ranges:
        if ranges.role.partition("[")[0] not in _ROLES:
            continue
        extremes = [(s, x.amax) for s, x in zip(ranges.steps, ranges.stats, strict=True)]
        if ranges.amax_step is not None:
            extremes.append((ranges.amax_step, ranges.amax))
        for step, amax in extremes:
            if step not in skipped and 0 < amax < math.inf:
                yield _Seen(amax, step, ranges)


def _trend(course: list[_Seen], limits: FormatLimits) -> str:
    first, last = course[0], course[-1]
    if first.step == last.step:
        return ""
    moved = math.log2(last.amax) - math.log2(first.amax)
    between = f"from step {first.step} to step {last.step}"
    if abs(moved) < _STEADY:
        return f", steady {between}"
    before, after = (wording.headroom(s.amax, limits) for s in (first, last))
    return f"; {between}: {before} to {after}"
