from __future__ import annotations

from making import event, trace
from usages import fact, used

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.diagnose.rule import Observations
from fp16doctor.diagnose.rules.unchecked_step import unchecked_step
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import UsageKind

STEP = fact(UsageKind.UNCHECKED_STEP, loss_scale=65536.0, optimizer="SGD", index=90)


def reaching(*sinks: str, phase: Phase = Phase.BACKWARD) -> Observations:
    born = event(step=0, phase=phase, reaches=sinks)
    return Observations(used(STEP).recording, (trace(born, step=0),))


FIRING = reaching("gradients", "parameters")
SILENT = reaching("gradients")


def test_an_overflow_that_was_meant_to_be_skipped_is_its_consequence() -> None:
    findings, _ = diagnose(FIRING)
    assert [(f.code, f.severity) for f in findings] == [("FD412", Severity.ERROR)]
    assert findings[0].subsumes == ("FD104",)
    assert "scaler.step(optimizer)" in findings[0].advice


def test_an_overflow_of_the_forward_is_another_matter() -> None:
    assert not list(unchecked_step(reaching("parameters", phase=Phase.FORWARD)))
