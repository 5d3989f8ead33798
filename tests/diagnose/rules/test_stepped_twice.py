from __future__ import annotations

from usages import fact, used

from fp16doctor.diagnose.rules.stepped_twice import stepped_twice
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.usage import UsageKind

FIRING = used(fact(UsageKind.STEPPED_TWICE, optimizer="SGD", detail="scaler.step"))
SILENT = used(fact(UsageKind.NEVER_UNSCALED, optimizer="SGD"))


def test_after_the_scaler_it_is_an_error() -> None:
    (finding,) = stepped_twice(FIRING)
    assert finding.severity is Severity.ERROR
    assert "`scaler.step` had applied" in finding.cause


def test_without_a_scaler_it_may_be_meant() -> None:
    seen = used(fact(UsageKind.STEPPED_TWICE, optimizer="SGD", detail="optimizer.step"))
    (finding,) = stepped_twice(seen)
    assert (finding.severity, finding.advice) == (Severity.NOTE, "")
