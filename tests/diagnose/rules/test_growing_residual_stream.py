from __future__ import annotations

from making import event, trace
from ranged import output, seen_ranges

from fp16doctor.diagnose.rules.growing_residual_stream import growing_residual_stream
from fp16doctor.schema.finding import Fault, Severity

GROWING = tuple(output(f"body.{i}", 2.0**i) for i in range(12))
FIRING = seen_ranges(*GROWING, traces=(trace(event(module_path="body.9.conv")),))
SILENT = seen_ranges(*(output(f"body.{i}", 3.0 + 0.1 * i) for i in range(12)))


def test_growth_that_overflows_is_an_error_of_the_initialisation() -> None:
    (finding,) = growing_residual_stream(FIRING)
    assert (finding.fault, finding.severity) == (Fault.INITIALIZATION, Severity.ERROR)
    assert "amax grows by 1 binades a block from `body.0` to `body.11`: 1 → 2048" in finding.what
    assert finding.site is not None
    assert finding.site.module_path == "body.9.conv"


def test_growth_within_the_format_is_a_note() -> None:
    (finding,) = growing_residual_stream(seen_ranges(*GROWING))
    assert finding.severity is Severity.NOTE


def test_order_is_by_number_and_short_chains_do_not_count() -> None:
    assert list(growing_residual_stream(seen_ranges(*reversed(GROWING))))
    assert not list(growing_residual_stream(seen_ranges(*GROWING[:5])))


def test_one_large_block_is_no_growth() -> None:
    flat = [output(f"body.{i}", 1.0) for i in range(11)]
    assert not list(growing_residual_stream(seen_ranges(*flat, output("body.11", 6e4))))
