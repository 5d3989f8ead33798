"""What a run says of a suspicion that the text of its script raises: when it is told.

Every script rule declares one of these. Must not know any single rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from fp16doctor.diagnose.rule import Observations
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.recording import OutcomeKind, StepInfo


@dataclass(frozen=True, slots=True)
class SeenRun:
    """A finished run, and what its own rules found."""

    seen: Observations
    findings: tuple[Finding, ...]
    style: bool = False  # what harms no run was asked for as well

    @property
    def steps(self) -> tuple[StepInfo, ...]:
        """Optimizer attempts."""
        return self.seen.recording.steps

    def holds(self, *names: str) -> bool:
        """Whether one of the run's rules of these names found something."""
        return any(f.name in names for f in self.findings)

    def ended_in(self, *faults: Fault) -> bool:
        """Whether an error or warning of these families was found."""
        return any(f.fault in faults for f in self.findings if f.severity is not Severity.NOTE)

    def is_blamed(self, file: str, line: int) -> bool:
        """Whether an error or warning stands at the very line."""
        loud = (f for f in self.findings if f.severity is not Severity.NOTE)
        sites = (s for f in loud for s in (f.site, f.cause_site) if s is not None)
        lines = (p for s in sites for p in (s.source, s.caller) if p is not None)
        return any((p.file, p.line) == (file, line) for p in lines)

    def raised_at(self, file: str, line: int) -> bool:
        """Whether an exception left the script at the line."""
        outcome = self.seen.recording.run.outcome
        at = outcome.source if outcome.kind is OutcomeKind.RAISED else None
        return at is not None and (at.file, at.line) == (file, line)


Stands = Callable[[SeenRun], bool]


def decided_by_run(run: SeenRun) -> bool:
    """Never told: where the line matters a rule of the run finds it, or an exception tells it."""
    return False


def matter_of_style(run: SeenRun) -> bool:
    """True of any run and harmful to none: told where it is asked for."""
    return run.style


def trained(run: SeenRun) -> bool:
    """No run shows it: told of every run that stepped an optimizer."""
    return bool(run.steps)


def never_updated(run: SeenRun) -> bool:
    """A scaler stepped and its scale was never updated; at a second step it would have raised."""
    scaled = "GradScaler" in run.seen.recording.run.loss_scaling
    return scaled and bool(run.steps) and all(s.next_loss_scale is None for s in run.steps)


def skipped_in_training(run: SeenRun) -> bool:
    """A step was skipped after one that was applied: no warm-up of the loss scale."""
    applied = [i for i, s in enumerate(run.steps) if s.found_inf is not None and not s.skipped]
    return bool(applied) and any(s.skipped for s in run.steps[applied[0] :])


def scale_not_carried(run: SeenRun) -> bool:
    """A scaler stepped several times, and no change of its scale reached the next step."""
    scaled = [s for s in run.steps if s.found_inf is not None]
    pairs = list(pairwise(scaled))
    changed = [(a, b) for a, b in pairs if a.next_loss_scale not in (None, a.loss_scale)]
    return bool(pairs) and not any(a.next_loss_scale == b.loss_scale for a, b in changed)


def stored_in_fp16(run: SeenRun) -> bool:
    """Parameters are kept in fp16, and no rule of the run found harm in the optimizer yet."""
    stored = dict(run.seen.recording.run.parameters_by_dtype)
    harmed = (f.site is not None and f.site.phase is Phase.OPTIMIZER for f in run.findings)
    return bool(stored.get("float16")) and bool(run.steps) and not any(harmed)


def gradients_underflowed(run: SeenRun) -> bool:
    """Gradients were lost to underflow."""
    return run.ended_in(Fault.UNDERFLOW)


def gradients_overflowed(run: SeenRun) -> bool:
    """Gradients overflowed, or the loss scale fell because of them."""
    backward = (f.site is not None and f.site.phase is Phase.BACKWARD for f in run.findings)
    return run.ended_in(Fault.LOSS_SCALE) or (run.ended_in(Fault.OVERFLOW) and any(backward))


def values_grew(run: SeenRun) -> bool:
    """Values overflowed, or came near it, or grew over depth."""
    return run.ended_in(Fault.OVERFLOW, Fault.INITIALIZATION)


def sums_in_16_bits(run: SeenRun) -> bool:
    """16-bit ops ran, and no rule found the sum that stopped: it stops when it is larger."""
    ran = dict(run.seen.recording.run.ops_by_dtype)
    return bool(ran.get("float16") or ran.get("bfloat16")) and not run.ended_in(Fault.LOST_UPDATE)
