from __future__ import annotations

from precise import seen_updates, update

from fp16doctor.diagnose.rules.lost_state_updates import lost_state_updates
from fp16doctor.schema.finding import Fault

FIRING = seen_updates(update(0.27, role="state", name=""), update(0.4, role="state", name=""))
SILENT = seen_updates(update(1.0, role="state"), update(0.0, role="parameter"))


def test_one_finding_for_one_line() -> None:
    (finding,) = lost_state_updates(FIRING)
    assert finding.fault is Fault.LOST_UPDATE
    assert "2 of 2 bf16 tensors beside the weights hardly follow" in finding.what


def test_accumulators_belong_to_another_rule() -> None:
    assert not list(lost_state_updates(seen_updates(update(0.1, role="state", n_writes=64))))
