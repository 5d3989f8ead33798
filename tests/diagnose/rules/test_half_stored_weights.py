from __future__ import annotations

from ranged import seen_ranges

from fp16doctor.diagnose.rules.half_stored_weights import half_stored_weights
from fp16doctor.schema.finding import Severity

STORED = (("bfloat16", 900), ("float32", 100))
FIRING = seen_ranges(autocast=("cpu bfloat16",), parameters_by_dtype=STORED)
SILENT = seen_ranges(autocast=("cpu bfloat16",), parameters_by_dtype=(("float32", 100),))


def test_says_how_many_weights_have_no_master_copy() -> None:
    (finding,) = half_stored_weights(FIRING)
    assert finding.severity is Severity.NOTE
    assert "90 % of the weights are stored in bf16" in finding.what


def test_without_autocast_another_rule_judges() -> None:
    assert not list(half_stored_weights(seen_ranges(parameters_by_dtype=STORED)))
