from __future__ import annotations

import pytest
from precise import seen_updates, update

from fp16doctor.diagnose.rules.lost_weight_updates import lost_weight_updates
from fp16doctor.schema.finding import Fault, Severity

FIRING = seen_updates(update(0.0), update(0.98, name="head.weight"))
SILENT = seen_updates(update(1.01, unchanged=380), update(0.93))


def test_says_how_much_of_the_update_arrives() -> None:
    (finding,) = lost_weight_updates(FIRING)
    assert (finding.fault, finding.severity) == (Fault.LOST_UPDATE, Severity.ERROR)
    assert "1 of 2 bf16 parameters lose their updates: " in finding.what
    assert finding.what.endswith("bf16 swallows what is below 2⁻⁹ of it")
    assert "Of the updates of `norm.weight` 0 % arrives." in finding.cause
    assert finding.evidence[1].count == 300
    assert finding.evidence[1].total == 384
    of_all = finding.evidence[-1]
    assert of_all.quantity == "unchanged elements of 2 parameters over 6 steps"
    assert (of_all.count, of_all.total) == (600, 768)


def test_a_single_examined_step_proves_nothing() -> None:
    assert not list(lost_weight_updates(seen_updates(update(0.0, steps=1))))


def test_a_small_share_of_the_parameters_is_a_warning() -> None:
    seen = seen_updates(update(0.0, total=8), update(0.99, total=10_000))
    (finding,) = lost_weight_updates(seen)
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize("role", ["state", "buffer"])
def test_other_tensors_belong_to_another_rule(role: str) -> None:
    assert not list(lost_weight_updates(seen_updates(update(0.0, role=role))))
