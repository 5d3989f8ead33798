from __future__ import annotations

from usages import fact, used

from fp16doctor.diagnose.rules.scaled_penalty import scaled_penalty
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import UsageKind

FIRING = used(fact(UsageKind.SCALED_PENALTY, Phase.LOSS, loss_scale=1024.0))
SILENT = used(fact(UsageKind.SCALED_PENALTY, Phase.LOSS, loss_scale=1.0))


def test_is_an_error_with_the_factor_and_the_division() -> None:
    (finding,) = scaled_penalty(FIRING)
    assert finding.severity is Severity.ERROR
    assert finding.what.endswith("1024 times too large")
    assert "scaler.get_scale()" in finding.advice
