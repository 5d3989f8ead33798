from __future__ import annotations

import dataclasses

import precise
from usages import fact, used

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.diagnose.rules.fp16_without_scaler import fp16_without_scaler
from fp16doctor.schema.finding import Fault, Severity
from fp16doctor.schema.location import TEXT_ROLE, Phase, SourceLine
from fp16doctor.schema.usage import UsageFact, UsageKind

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


def test_two_lines_that_do_it_are_one_note() -> None:
    second = fact(UsageKind.FP16_WITHOUT_SCALE, Phase.BACKWARD, format="fp16")
    line = SourceLine("train.py", 30, "<module>", "g_loss.backward()")
    there = dataclasses.replace(second.site, step=5, source=line)
    (finding,), _ = diagnose(used(PLAIN, dataclasses.replace(second, site=there)))
    assert finding.site == PLAIN.site
    assert finding.repeats == (there,)


def test_what_the_text_of_the_script_shows_keeps_one_finding_a_line() -> None:
    def of(line: int) -> UsageFact:
        at = fact(UsageKind.FP16_WITHOUT_SCALE, Phase.BACKWARD, format="fp16")
        source = SourceLine("train.py", line, "<module>", "loss.backward()")
        site = dataclasses.replace(at.site, role=TEXT_ROLE, source=source)
        return dataclasses.replace(at, site=site)

    findings, _ = diagnose(used(of(3), of(9)))
    assert len(findings) == 2
