from __future__ import annotations

from usages import fact, used

from fp16doctor.diagnose.rules.stale_autocast_cache import stale_autocast_cache
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import UsageKind

FIRING = used(fact(UsageKind.STALE_CAST, Phase.FORWARD, step=1, format="bf16", steps=4))
SILENT = used(fact(UsageKind.SOFTMAX_THEN_LOG, Phase.FORWARD, format="bf16"))


def test_names_the_module_and_the_format() -> None:
    (finding,) = stale_autocast_cache(FIRING)
    assert finding.severity is Severity.ERROR
    assert finding.what.startswith("`blocks.2.ffn.wo` reads a bf16 cast of its weight")
    assert "4 steps" in finding.cause
