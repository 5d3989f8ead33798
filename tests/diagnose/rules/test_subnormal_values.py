from __future__ import annotations

from dataclasses import replace

from precise import op_loss, precise, seen_traces

from fp16doctor.diagnose.rules.subnormal_values import subnormal_values
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.location import Phase

FAINT = op_loss(8, phase=Phase.FORWARD, lost_share=0.01, subnormal_share=0.98, amax_reference=3e-6)
FIRING = seen_traces(precise(ops=(FAINT,), gradient_error=0.3))
SILENT = seen_traces(precise(ops=(op_loss(8, phase=Phase.BACKWARD, subnormal_share=0.9),)))


def test_says_how_many_bits_are_left() -> None:
    (finding,) = subnormal_values(FIRING)
    assert finding.severity is Severity.WARNING
    assert "98 % of its mass is below 2⁻¹⁴" in finding.what
    assert "5 of 10 bits behind the first are left" in finding.cause  # 3e-6 / 2⁻²⁴ = 50.3


def test_without_effect_it_is_a_note() -> None:
    (finding,) = subnormal_values(seen_traces(precise(ops=(FAINT,))))
    assert finding.severity is Severity.NOTE


def test_what_only_enters_sums_too_coarse_for_it_is_passed_over() -> None:
    drowned = replace(FAINT, exposed_share=0.0)
    (finding,) = subnormal_values(seen_traces(precise(ops=(drowned, FAINT), gradient_error=0.3)))
    assert finding.site is FAINT.site
    assert not list(subnormal_values(seen_traces(precise(ops=(drowned,), gradient_error=0.3))))
