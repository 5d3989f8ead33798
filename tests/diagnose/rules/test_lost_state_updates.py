from __future__ import annotations

import pytest
from precise import seen_updates, update

from fp16doctor.diagnose.rules.lost_state_updates import lost_state_updates
from fp16doctor.schema.finding import Fault
from fp16doctor.schema.precision import Standstill

FIRING = seen_updates(update(0.27, role="state", name=""), update(0.4, role="state", name=""))
SILENT = seen_updates(update(1.0, role="state"), update(0.0, role="parameter"))


def test_one_finding_for_one_line() -> None:
    (finding,) = lost_state_updates(FIRING)
    assert finding.fault is Fault.LOST_UPDATE
    assert "2 of 2 bf16 tensors beside the weights lose their updates" in finding.what


def test_accumulators_belong_to_another_rule() -> None:
    assert not list(lost_state_updates(seen_updates(update(0.1, role="state", n_writes=64))))


def still(missed: float, realised: float = 0.0, steps: int = 2) -> Standstill:
    return Standstill(499, 1499, steps, realised, missed, 1e-3)


def test_what_followed_at_first_and_stopped() -> None:
    stopped = update(0.97, role="buffer", standstill=still(0.6))
    (finding,) = lost_state_updates(seen_updates(stopped, update(1.0, role="buffer")))
    assert "1 of 2 bf16 tensors beside the weights stands still from step 499 on" in finding.what
    assert "Up to step 1499 it missed 60 % of its value" in finding.cause


@pytest.mark.parametrize("facts", [still(0.05), still(0.6, 0.7), still(0.6, steps=1)])
def test_what_missed_little_has_not_stopped(facts: Standstill) -> None:
    assert not list(lost_state_updates(seen_updates(update(1.0, role="state", standstill=facts))))
