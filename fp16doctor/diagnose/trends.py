"""How the amax of a module's output moved in front of the step in which it left its format.

Must not know rules or words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2

from fp16doctor.diagnose.rule import Observations
from fp16doctor.schema.finding import RISE, Evidence
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.ranges import ModuleRanges

FEWEST = 6  # measured steps that make a trend
LEAST = 0.5  # binades that they must span
SURE = 2.0  # standard errors of the slope that its interval reaches to both sides


@dataclass(frozen=True, slots=True)
class Rise:
    """A steady rise: a least-squares line through log2(amax) over steps."""

    per_100: float  # binades per 100 steps
    error: float  # standard error of that
    first: int
    last: int  # steps it is measured on

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.per_100 - SURE * self.error

    @property
    def high(self) -> float:
        """Upper end of it."""
        return self.per_100 + SURE * self.error


def rise_to(seen: Observations, site: OpSite) -> Rise | None:
    """Return the rise of the output that became non-finite at ``site``.

    It is measured over the later half of the steps in front; None where that is too short, where
    the values scatter more than they rise, or where the module is not known.
    """
    found = next((r for r in seen.recording.ranges if _is_at(r, site)), None)
    if found is None:
        return None
    pairs = zip(found.steps, found.stats, strict=True)
    points = [(s, log2(x.amax)) for s, x in pairs if s < site.step and x.amax > 0]
    half = [p for p in points if p[0] >= site.step / 2]
    if len(half) < FEWEST:
        return None
    rise = _line(half)
    spans = rise.per_100 * (rise.last - rise.first) / 100
    return rise if rise.low > rise.per_100 / 2 > 0 and spans >= LEAST else None


def rise_evidence(rise: Rise | None) -> Iterator[Evidence]:
    """Yield the slope, if there is one."""
    if rise is not None:
        yield Evidence(RISE, rise.per_100, "recorded")


def _is_at(ranges: ModuleRanges, site: OpSite) -> bool:
    """A module of one of several roots is named with its root in the survey."""
    path = site.module_path
    if path is None or ranges.role != "output" or ranges.module_class != site.module_class:
        return False
    named = ranges.module_path == path or ranges.module_path.endswith(f".{path}")
    seen_at = ranges.first_nonfinite  # of the steps that the survey looked at
    return named and seen_at is not None and seen_at >= site.step


def _line(points: list[tuple[int, float]]) -> Rise:
    n = len(points)
    mean_x, mean_y = (sum(p[i] for p in points) / n for i in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    error = (rest / (n - 2) / spread) ** 0.5
    return Rise(100 * slope, 100 * error, points[0][0], points[-1][0])
