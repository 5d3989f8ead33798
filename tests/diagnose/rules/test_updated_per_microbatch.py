from __future__ import annotations

from usages import fact, used

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.diagnose.rules.updated_per_microbatch import updated_per_microbatch
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import UsageKind

MIXED = fact(UsageKind.MIXED_SCALES, Phase.BACKWARD, loss_scale=1024.0, step=1)
FIRING = used(MIXED)
SILENT = used(fact(UsageKind.MIXED_SCALES, Phase.BACKWARD, loss_scale=1.0))


def test_is_an_error_with_the_scale() -> None:
    (finding,) = updated_per_microbatch(FIRING)
    assert finding.severity is Severity.ERROR
    assert finding.what.startswith("gradients scaled by 1024 are added")


def test_a_second_division_is_its_consequence() -> None:
    again = fact(UsageKind.UNSCALED_TWICE, loss_scale=1024.0, step=3)
    findings, _ = diagnose(used(MIXED, again))
    assert [(f.code, f.subsumes) for f in findings] == [("FD405", ("FD406",))]
