"""What is said beside a recommendation: faults that its cure met only behind the first one.

Must not know how a cure is chosen (``plan``).
"""

from __future__ import annotations

from collections.abc import Sequence

from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.remedies.keep_list import places
from fp16doctor.prescribe.remedies.loss_scale import of_the_scale
from fp16doctor.replay.keep import covers
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.policy import KeepRule
from fp16doctor.schema.prescription import Prescription, RemedyKind

_LOST = "gradients underflow once nothing else is wrong"


def note(case: Case, chosen: Sequence[Prescription]) -> str:
    """Return ``; `blocks.2` overflows only once the others are cured``, "" where nothing hid."""
    if case.bench is None:
        return ""
    said = [_places_behind(case, case.bench, p) for p in chosen]
    scaled = any(p.remedy.kind is RemedyKind.LOSS_SCALE for p in chosen)
    if scaled and not any(of_the_scale(f) for _, f in case.demanding):
        said.append(_LOST)
    return "".join(f"; {s}" for s in said if s)


def _places_behind(case: Case, bench: Bench, cure: Prescription) -> str:
    if cure.remedy.kind is not RemedyKind.FP32_KEEP:
        return ""
    shown = [s for _, f in case.of_precision for s in places(f)]
    hidden = [s for a in bench.tried if a.policy.keep for s in bench.hidden(a)]
    rules = [KeepRule(t) for t in cure.remedy.target]
    behind = [r.what for r in rules if _any(r, hidden) and not _any(r, shown)]
    if not behind:
        return ""
    verb = "shows its fault" if len(behind) == 1 else "show their faults"
    names = ", ".join(f"`{b}`" for b in behind)
    return f"{names} {verb} only once the first is cured"


def _any(rule: KeepRule, sites: Sequence[OpSite]) -> bool:
    return any(covers(rule, s) for s in sites)
