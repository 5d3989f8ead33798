from __future__ import annotations

import pytest
from usages import fact, used

from fp16doctor.diagnose.rules.never_scaled import never_scaled
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import BESIDE_SCALED, UsageKind

PLAIN = fact(UsageKind.NEVER_SCALED, Phase.BACKWARD, loss_scale=1024.0, optimizer="SGD")
FIRING = used(PLAIN)
SILENT = used(fact(UsageKind.NEVER_SCALED, Phase.BACKWARD, loss_scale=1.0, optimizer="SGD"))


def test_names_the_factor_and_the_call() -> None:
    (finding,) = never_scaled(FIRING)
    assert finding.severity is Severity.ERROR
    assert finding.what.endswith("divided by 1024")
    assert "scaler.scale(loss).backward()" in finding.advice


@pytest.mark.parametrize(
    ("detail", "severity"), [("", Severity.WARNING), (BESIDE_SCALED, Severity.ERROR)]
)
def test_an_optimizer_hides_it_unless_another_loss_is_scaled(
    detail: str, severity: Severity
) -> None:
    seen = used(
        fact(
            UsageKind.NEVER_SCALED,
            Phase.BACKWARD,
            loss_scale=1024.0,
            optimizer="Adam",
            detail=detail,
        )
    )
    (finding,) = never_scaled(seen)
    assert finding.severity is severity
