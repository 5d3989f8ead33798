from __future__ import annotations

from precise import seen_updates, update

from fp16doctor.diagnose.rules.optimizer_state_underflow import optimizer_state_underflow
from fp16doctor.schema.location import Phase

FIRING = seen_updates(update(0.9, role="state", format="fp16", underflows=40))
SILENT = seen_updates(update(0.9, role="state", format="fp16", underflows=3))


def test_counts_elements_that_became_zero() -> None:
    (finding,) = optimizer_state_underflow(FIRING)
    assert "40 of 64 elements of one are zero and should not be" in finding.what


def test_buffers_of_the_forward_are_not_optimizer_state() -> None:
    seen = seen_updates(update(0.9, role="state", underflows=40, phase=Phase.FORWARD))
    assert not list(optimizer_state_underflow(seen))
