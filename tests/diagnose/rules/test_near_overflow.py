from __future__ import annotations

from ranged import output, seen_ranges

from fp16doctor.diagnose.rules.near_overflow import near_overflow
from fp16doctor.schema.finding import Severity

FIRING = seen_ranges(output("ffn", 2.0e4, 4.1e4), output("head", 12.0))
SILENT = seen_ranges(output("ffn", 2.0e4), output("gone", 4.1e4, n_nonfinite=1))


def test_names_the_nearest_output_and_its_trend() -> None:
    (finding,) = near_overflow(FIRING)
    assert finding.severity is Severity.NOTE
    assert "the output of `ffn` reaches 4.1e4, near the fp16 maximum 65504" in finding.what
    assert "It moves by 10.4 binades per 1000 steps." in finding.cause  # log2(2.05) in 100 steps


def test_a_run_without_fp16_has_no_such_limit() -> None:
    seen = seen_ranges(output("ffn", 4.1e4), ops_by_dtype=(("bfloat16", 10),))
    assert not list(near_overflow(seen))
