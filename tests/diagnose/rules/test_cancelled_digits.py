from __future__ import annotations

from typing import Any

import pytest
from making import site
from precise import integer_loss, precise, seen_traces

from fp16doctor.diagnose.rules.cancelled_digits import cancelled_digits
from fp16doctor.schema.finding import Fault, Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.precision import AmplifiedError
from fp16doctor.schema.trace import ReplayTrace


def amplified(share: float | None = 0.98) -> AmplifiedError:
    return AmplifiedError(
        site=site("aten.sub.Tensor", 12, phase=Phase.LOSS), format="bf16", error=1.24,
        error_in=0.0016, cause_site=site("aten.cumsum.default", 11, phase=Phase.LOSS),
        share=share, whole=0.28, left=0.002,
    )  # fmt: skip


def step(number: int, error: float = 0.28, **facts: Any) -> ReplayTrace:
    return precise(step=number, gradient_error=error, **{"amplified": (amplified(),), **facts})


FIRING = seen_traces(step(0), step(1))
SILENT = seen_traces(step(0, 0.02), step(1, 0.02))


def test_names_the_difference_and_what_made_its_operand() -> None:
    (finding,) = cancelled_digits(FIRING)
    assert finding.severity is Severity.ERROR
    assert finding.fault is Fault.PRECISION_LOSS
    assert "is 124 % off: its operands, 0.16 % off in bf16, cancel" in finding.what
    assert "28 % off the fp32 replay, 0.2 % with this one result exact" in finding.cause
    assert finding.cause_site is not None
    assert finding.cause_site.op == "aten.cumsum.default"


@pytest.mark.parametrize(
    "traces",
    [
        (step(0),),
        (step(0, 0.02), step(9), step(19), step(49)),
        (step(0), step(1), step(2, 0.02), step(3, 0.02), step(4, 0.02)),
        (step(0, amplified=(amplified(0.1),)), step(1, amplified=(amplified(None),))),
        (step(0, integers=(integer_loss(),)), step(1, integers=(integer_loss(),))),
    ],
    ids=["one step", "residuals at the end", "few steps", "others to blame", "integers"],
)
def test_says_nothing(traces: tuple[ReplayTrace, ...]) -> None:
    assert not list(cancelled_digits(seen_traces(*traces)))
