from __future__ import annotations

import pytest
from making import event, trace
from usages import fact, used

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.diagnose.rule import Observations
from fp16doctor.diagnose.rules.never_unscaled import never_unscaled
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.usage import UsageFact, UsageKind

SGD = fact(UsageKind.NEVER_UNSCALED, loss_scale=65536.0, optimizer="SGD", index=90)
FIRING = used(SGD)
SILENT = used(fact(UsageKind.NEVER_UNSCALED, loss_scale=1.0, optimizer="SGD"))


def by_hand(**kwargs: object) -> UsageFact:
    facts = {"loss_scale": 1024.0, "by_hand": True, "optimizer": "SGD"} | kwargs
    return fact(UsageKind.NEVER_UNSCALED, **facts)


def with_overflow(seen: Observations, step: int) -> Observations:
    return Observations(seen.recording, (trace(event(step=step), step=step),))


def test_names_the_factor_and_the_call() -> None:
    (finding,) = never_unscaled(FIRING)
    assert finding.severity is Severity.ERROR
    assert finding.what == "SGD steps on gradients that are 65536 times too large"
    assert "scaler.step(optimizer)" in finding.advice


def test_an_optimizer_that_hides_the_factor_is_a_warning() -> None:
    seen = used(fact(UsageKind.NEVER_UNSCALED, loss_scale=65536.0, optimizer="AdamW"))
    (finding,) = never_unscaled(seen)
    assert finding.severity is Severity.WARNING


def test_a_constant_of_the_script_is_a_note_at_most() -> None:
    (finding,) = never_unscaled(used(by_hand()))
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize("change", [{"loss_scale": 32.0}, {"optimizer": "Adam"}])
def test_a_constant_that_may_be_a_weight(change: dict[str, object]) -> None:
    assert not list(never_unscaled(used(by_hand(**change))))


def test_a_later_overflow_is_its_consequence() -> None:
    findings, _ = diagnose(with_overflow(FIRING, step=1))
    assert [f.code for f in findings] == ["FD403"]
    assert findings[0].subsumes == ("FD101",)
    assert "As a consequence" in findings[0].cause


def test_an_overflow_in_the_forward_before_it_is_not() -> None:
    findings, _ = diagnose(with_overflow(FIRING, step=0))
    assert {f.code for f in findings} == {"FD101", "FD403"}


def test_a_constant_becomes_an_error_with_its_consequence() -> None:
    findings, _ = diagnose(with_overflow(used(by_hand()), step=1))
    assert [(f.code, f.severity) for f in findings] == [("FD403", Severity.ERROR)]
