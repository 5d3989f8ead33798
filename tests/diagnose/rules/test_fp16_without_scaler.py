from __future__ import annotations

import dataclasses

import precise
from usages import fact, used

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.diagnose.rules.fp16_without_scaler import fp16_without_scaler
from fp16doctor.schema.finding import Fault, Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import UsageKind

PLAIN = fact(UsageKind.FP16_WITHOUT_SCALE, Phase.BACKWARD, format="fp16")
FIRING = used(PLAIN)
SILENT = used(fact(UsageKind.BF16_WITH_SCALER, Phase.LOSS, format="bf16"))


def test_alone_it_is_a_note() -> None:
    (finding,) = fp16_without_scaler(FIRING)
    assert finding.severity is Severity.NOTE


def test_lost_gradients_are_its_consequence() -> None:
    lost = precise.precise(gradients=(precise.gradient_loss(),))
    seen = dataclasses.replace(FIRING, traces=(lost,))
    findings, _ = diagnose(seen)
    assert [(f.code, f.severity, f.fault) for f in findings] == [
        ("FD407", Severity.ERROR, Fault.MISUSE)
    ]
    assert "FD201" in findings[0].subsumes


def test_gradients_that_are_sound_leave_it_a_note() -> None:
    sound = precise.precise(gradients=(precise.gradient_loss(lost=0.0),))
    findings, _ = diagnose(dataclasses.replace(FIRING, traces=(sound,)))
    assert [(f.code, f.severity) for f in findings] == [("FD407", Severity.NOTE)]
