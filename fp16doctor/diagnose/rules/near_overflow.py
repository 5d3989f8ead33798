"""A module's output comes within a factor of two of the format's maximum.

What it checks:
    The largest finite magnitude of each module output in a run that computes in fp16, over all
    steps, against half of 65504, and how it moves from step to step.

Why it matters:
    One more binade and the value is infinite. Whether it gets there depends on the data and on
    the weights to come.

Example:
    step 300: the output of `blocks.7.ffn` reaches 4.1e4

Remedy:
    None is needed yet. Should it grow: keep the module in fp32, or train in bf16.

References:
    IEEE 754-2019, section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

from fp16doctor.diagnose.limits import limits
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import maximum, number
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.ranges import ModuleRanges
from fp16doctor.schema.spelling import module

_HEADROOM = 1.0  # bits


@rule(code="FD105", name="near-overflow", needs=("recording",))
def near_overflow(seen: Observations) -> Iterator[Finding]:
    """Yield one note for the module that comes nearest."""
    if "float16" not in dict(seen.recording.run.ops_by_dtype):
        return
    near = [r for r in seen.recording.ranges if r.role == "output" and _is_near(r)]
    if near:
        yield _finding(max(near, key=lambda r: r.amax), len(near))


def _is_near(ranges: ModuleRanges) -> bool:
    """Less than a bit of headroom, and still in range: what left it has a rule of its own."""
    top = limits("fp16").max
    return not ranges.n_nonfinite and top / 2**_HEADROOM <= ranges.amax <= top


def _finding(nearest: ModuleRanges, count: int) -> Finding:
    top = limits("fp16").max
    name = module(nearest.module_path or nearest.module_class, nearest.module_class)
    return Finding(
        code="FD105",
        name="near-overflow",
        severity=Severity.NOTE,
        fault=Fault.OVERFLOW,
        what=f"the output of {name} reaches {number(nearest.amax)}, near {maximum('fp16')}",
        cause=(
            f"{number(log2(top / nearest.amax))} bits of headroom are left; {count} outputs have "
            f"less than one.{_trend(nearest)}"
        ),
        site=OpSite(
            step=nearest.amax_step or 0, phase=Phase.FORWARD, op="", index=0,
            module_path=nearest.module_path, module_class=nearest.module_class,
        ),
        evidence=(
            Evidence("amax", nearest.amax, "recorded", limit=top, limit_name="max", format="fp16"),
        ),
    )  # fmt: skip


def _trend(ranges: ModuleRanges) -> str:
    """How the measured maxima move, in binades per 1000 steps."""
    points = [(s, st.amax) for s, st in zip(ranges.steps, ranges.stats, strict=True) if st.amax > 0]
    if len(points) < 2 or points[-1][0] == points[0][0]:
        return ""
    (first, low), (last, high) = points[0], points[-1]
    slope = 1000 * log2(high / low) / (last - first)
    return f" It moves by {number(slope)} binades per 1000 steps."
