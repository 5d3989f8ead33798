from __future__ import annotations

from usages import fact, used

from fp16doctor.diagnose.rules.unscaled_twice import unscaled_twice
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.usage import UsageKind

FIRING = used(fact(UsageKind.UNSCALED_TWICE, loss_scale=1024.0))
SILENT = used(fact(UsageKind.UNSCALED_TWICE, loss_scale=1.0))


def test_is_an_error_with_the_factor() -> None:
    (finding,) = unscaled_twice(FIRING)
    assert finding.severity is Severity.ERROR
    assert finding.what.endswith("1024 times too small")
