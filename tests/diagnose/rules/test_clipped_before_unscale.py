from __future__ import annotations

import pytest
from usages import fact, used

from fp16doctor.diagnose.rules.clipped_before_unscale import clipped_before_unscale
from fp16doctor.schema.finding import Fault, Severity
from fp16doctor.schema.usage import UsageKind

CLIP = {"loss_scale": 1024.0, "limit": 1.0, "coefficient": 1 / 512}
FIRING = used(fact(UsageKind.SCALED_CLIP, **CLIP))
SILENT = used(fact(UsageKind.SCALED_CLIP, **(CLIP | {"loss_scale": 1.0})))


def test_the_threshold_that_acts_is_divided_by_the_scale() -> None:
    (finding,) = clipped_before_unscale(FIRING)
    assert (finding.severity, finding.fault) == (Severity.ERROR, Fault.MISUSE)
    assert finding.what == "gradients are clipped to 1 while they carry the loss scale 1024"
    assert "1 / 1024 = 2⁻¹⁰" in finding.cause
    # The unscaled norm is 1/2: the same threshold would not have clipped at all.
    assert "which is 512 times less" in finding.cause
    assert "`scaler.unscale_(optimizer)`" in finding.advice
    assert "`train.py:40`" in finding.advice


def test_a_threshold_that_was_meant_to_act_is_off_by_the_scale() -> None:
    seen = used(fact(UsageKind.SCALED_CLIP, **(CLIP | {"coefficient": 2.0**-14})))
    (finding,) = clipped_before_unscale(seen)
    assert "which is 1024 times less" in finding.cause


def test_a_threshold_that_was_never_reached_is_a_note() -> None:
    seen = used(fact(UsageKind.SCALED_CLIP, **(CLIP | {"coefficient": 1.0})))
    (finding,) = clipped_before_unscale(seen)
    assert finding.severity is Severity.NOTE


def test_a_norm_that_is_only_read_is_a_note() -> None:
    (finding,) = clipped_before_unscale(used(fact(UsageKind.SCALED_NORM, loss_scale=1024.0)))
    assert (finding.severity, finding.advice) == (Severity.NOTE, "")


def test_a_factor_of_zero_means_no_update() -> None:
    seen = used(fact(UsageKind.SCALED_CLIP, **(CLIP | {"coefficient": 0.0})))
    (finding,) = clipped_before_unscale(seen)
    assert finding.severity is Severity.ERROR
    assert "Clipping multiplied the gradients by 0, since the norm" in finding.cause
    assert [(e.quantity, e.measured) for e in finding.evidence][-1] == ("clipping factor", 0.0)


@pytest.mark.parametrize("missing", ["loss_scale", "limit", "coefficient"])
def test_numbers_that_are_not_known_are_left_out(missing: str) -> None:
    facts = {k: v for k, v in CLIP.items() if k != missing}
    (finding,) = clipped_before_unscale(used(fact(UsageKind.SCALED_CLIP, **facts)))
    assert finding.severity is Severity.ERROR
    assert "None" not in finding.what + finding.cause
