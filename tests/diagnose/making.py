"""Hand-made observations: sites, events, traces and runs, without torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fp16doctor.diagnose.rule import Observations
from fp16doctor.schema.location import OpSite, Phase, SourceLine
from fp16doctor.schema.recording import Outcome, OutcomeKind, Recording, RunInfo, StepInfo
from fp16doctor.schema.trace import Event, EventKind, Fidelity, ReplayTrace, SinkState

LINE = SourceLine("train.py", 40, "FFN.forward", "return self.wo(h)")
FINISHED = Outcome(OutcomeKind.FINISHED)


def site(op: str = "aten.mm.default", index: int = 10, **kwargs: Any) -> OpSite:
    kwargs = {"step": 0, "phase": Phase.FORWARD, "source": LINE, "element": (3, 17)} | kwargs
    kwargs = {"module_path": "blocks.2.ffn.wo", "module_class": "Linear"} | kwargs
    return OpSite(op=op, index=index, **kwargs)


def event(kind: EventKind = EventKind.OVERFLOW, **kwargs: Any) -> Event:
    where = {
        k: kwargs.pop(k)
        for k in ("op", "index", "step", "phase", "source", "module_path", "element")
        if k in kwargs
    }
    facts: dict[str, Any] = {
        "format": "fp16",
        "n_inf": 12,
        "n_nan": 0,
        "total": 4096,
        "exact": 1.84e5,
        "reference": 1.84e5,
        "reference_amax": 1.84e5,
        "later_nonfinite": 214,
        "reaches": ("loss", "gradients"),
    }
    return Event(kind=kind, site=site(**where), **(facts | kwargs))


def gradient(exact: float = 1.2e5, **kwargs: Any) -> Event:
    """An overflow of backward that reaches the gradients."""
    facts = {"exact": exact, "reference": exact, "reference_amax": exact}
    return event(**({"phase": Phase.BACKWARD, "reaches": ("gradients",)} | facts | kwargs))


def sink(name: str, error: float | None = 0.0, nonfinite_reference: int = 0) -> SinkState:
    return SinkState(name, 1, 0, nonfinite_reference, error)


def trace(*events: Event, step: int = 0, **kwargs: Any) -> ReplayTrace:
    facts: dict[str, Any] = {
        "reference": "fp32",
        "sinks": (sink("loss"), sink("gradients")),
        "fidelity": Fidelity(True, 10),
        "n_ops": 800,
    }
    return ReplayTrace(step=step, events=events, **(facts | kwargs))


def scaled_trace(*events: Event, step: int = 0, scale: float = 65536.0) -> ReplayTrace:
    """A step in which GradScaler saw the events."""
    return trace(*events, step=step, loss_scale=scale, found_inf=True)


def attempts(pattern: str, scale: float = 65536.0) -> tuple[StepInfo, ...]:
    """Attempts under a GradScaler: s = skipped (the scale halves), . = taken, ^ = and raised."""
    steps = []
    for number, mark in enumerate(pattern):
        skipped = mark == "s"
        following = scale / 2 if skipped else scale * (2 if mark == "^" else 1)
        steps.append(
            StepInfo(
                number,
                loss=2.0,
                loss_scale=scale,
                found_inf=skipped,
                skipped=skipped,
                next_loss_scale=following,
            )
        )
        scale = following
    return tuple(steps)


def plain(count: int) -> tuple[StepInfo, ...]:
    """Steps without a scaler."""
    return tuple(StepInfo(number, loss=2.0) for number in range(count))


def observed(
    *traces: ReplayTrace,
    steps: Iterable[StepInfo] = (),
    outcome: Outcome = FINISHED,
    final: bool = True,
) -> Observations:
    run = RunInfo("train.py", (), outcome, "0.1.0", "2.13.0", "3.12.3", "cpu", "", 1.0)
    return Observations(Recording(run, tuple(steps)), traces, final)


EMPTY = observed()
