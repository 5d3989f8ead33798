from __future__ import annotations

from making import attempts
from usages import fact, used

from fp16doctor.diagnose.rules.scaler_with_bf16 import scaler_with_bf16
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import UsageKind

SCALER = fact(UsageKind.BF16_WITH_SCALER, Phase.LOSS, format="bf16", loss_scale=65536.0)
FIRING = used(SCALER, ops_by_dtype=(("bfloat16", 100), ("float32", 50)))
# In a later step the same run used fp16.
SILENT = used(SCALER, ops_by_dtype=(("bfloat16", 100), ("float16", 50)))


def test_is_a_note() -> None:
    (finding,) = scaler_with_bf16(FIRING)
    assert finding.severity is Severity.NOTE


def test_skipped_steps_make_it_a_warning() -> None:
    (finding,) = scaler_with_bf16(used(SCALER, steps=attempts("s...")))
    assert finding.severity is Severity.WARNING
    assert "1 step of the run" in finding.cause
