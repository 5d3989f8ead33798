"""Says in a finding what the script's own loops counted to, where steps are counted otherwise.

A step ends with each optimizer's step: with two optimizers, or several batches a step, the loop's
own number is another one.

Must not know rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fp16doctor.diagnose.rule import Observations
from fp16doctor.schema.finding import Finding


def with_loop_counts(seen: Observations, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings; the cause of each names the loops' variables in its step."""
    known = {s.step: s.loops for s in seen.recording.steps}
    return tuple(
        f if f.site is None else _with(f, f.site.step, known.get(f.site.step, ())) for f in findings
    )


def _with(finding: Finding, step: int, loops: tuple[tuple[str, int], ...]) -> Finding:
    if not loops or [value for _, value in loops] == [step]:
        return finding
    counts = ", ".join(f"`{name}` = {value}" for name, value in loops)
    of = "loop" if len(loops) == 1 else "loops"
    words = f"Optimizer step {step} is taken at {counts} of the script's {of}."
    return replace(finding, cause=f"{finding.cause} {words}".strip())
