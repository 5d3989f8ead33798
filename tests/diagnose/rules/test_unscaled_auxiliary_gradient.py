from __future__ import annotations

from usages import fact, used

from fp16doctor.diagnose.rules.unscaled_auxiliary_gradient import unscaled_auxiliary_gradient
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import UsageKind

ONES = {"op": "aten.ones_like.default", "detail": "ones_like"}
FIRING = used(fact(UsageKind.UNSCALED_INJECTION, Phase.BACKWARD, loss_scale=4096.0, **ONES))
SILENT = used(fact(UsageKind.UNSCALED_INJECTION, Phase.BACKWARD, loss_scale=1.0, **ONES))


def test_says_by_how_much_it_counts_too_little() -> None:
    (finding,) = unscaled_auxiliary_gradient(FIRING)
    assert finding.severity is Severity.ERROR
    assert "`blocks.2.ffn.wo` lacks the loss scale: it counts 4096 times too little" in finding.what
    assert "`ones_like` makes it" in finding.cause
