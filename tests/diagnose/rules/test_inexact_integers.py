from __future__ import annotations

from precise import integer_loss, precise, seen_traces

from fp16doctor.diagnose.rules.inexact_integers import inexact_integers
from fp16doctor.schema.finding import Fault, Severity

FIRING = seen_traces(precise(integers=(integer_loss(),), loss_error=0.12))
SILENT = seen_traces(precise(integers=(integer_loss(collisions=0),), loss_error=0.12))


def test_positions_that_collide_and_change_the_loss_are_an_error() -> None:
    (finding,) = inexact_integers(FIRING)
    assert (finding.fault, finding.severity) == (Fault.PRECISION_LOSS, Severity.ERROR)
    assert "rounds 512 of 1024 integers to bf16, 511 of them become equal" in finding.what
    assert "holds all integers up to 256" in finding.cause


def test_without_effect_it_is_a_note() -> None:
    (finding,) = inexact_integers(seen_traces(precise(integers=(integer_loss(),))))
    assert finding.severity is Severity.NOTE


def test_one_finding_a_line_over_all_steps_the_one_with_effect_first() -> None:
    harmless = precise(integers=(integer_loss(),))
    harmful = precise(step=3, integers=(integer_loss(),), gradient_error=0.6)
    (finding,) = inexact_integers(seen_traces(harmless, harmful))
    assert finding.severity is Severity.ERROR
