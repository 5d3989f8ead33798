from __future__ import annotations

import dataclasses

from making import event, trace
from ranged import output, seen_ranges

from fp16doctor.diagnose.folding import fold_explained
from fp16doctor.diagnose.rules.growing_residual_stream import growing_residual_stream
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.ranges import ModuleRanges

GROWING = tuple(output(f"body.{i}", 2.0**i) for i in range(12))
FIRING = seen_ranges(*GROWING, traces=(trace(event(module_path="body.9.conv")),))
SILENT = seen_ranges(*(output(f"body.{i}", 3.0 + 0.1 * i) for i in range(12)))


def test_growth_that_overflows_is_an_error_of_the_initialisation() -> None:
    (finding,) = growing_residual_stream(FIRING)
    assert (finding.fault, finding.severity) == (Fault.INITIALIZATION, Severity.ERROR)
    assert "grow 2-fold a block, from 1 behind `body.0` to 2048 behind `body.11`" in finding.what
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


def test_blocks_behind_an_overflow_say_nothing_of_the_growth() -> None:
    """What is left of a partly infinite output has an amax near 65504, block for block."""

    def cut_off(number: int) -> ModuleRanges:
        block = output(f"body.{number}", 6.5e4)
        return dataclasses.replace(block, stats=(dataclasses.replace(block.stats[0], n_inf=7),))

    after = tuple(cut_off(i) for i in range(12, 40))
    (finding,) = growing_residual_stream(seen_ranges(*GROWING, *after))
    assert "from 1 behind `body.0` to 2048 behind `body.11`" in finding.what
    assert not list(growing_residual_stream(seen_ranges(*after)))


def overflow(index: int) -> Finding:
    site = event(module_path="body.9.conv").site
    return Finding(
        "FD101", "activation-overflow", Severity.ERROR, Fault.OVERFLOW, "w", "c", at(site, index)
    )


def at(site: OpSite | None, index: int) -> OpSite:
    assert site is not None
    return dataclasses.replace(site, index=index)


def test_an_overflow_of_the_chain_is_its_consequence() -> None:
    """The initial weights were there before the op; what came before the chain was not theirs."""
    (growth,) = growing_residual_stream(FIRING)
    growth = dataclasses.replace(growth, site=at(growth.site, 20))
    same, later, earlier = overflow(20), overflow(30), overflow(10)
    folded = fold_explained((earlier, same, growth, later), {"FD501": ("FD101", "FD102")})
    assert [f.code for f in folded] == ["FD101", "FD501"]
    assert folded[0] is earlier
    assert folded[1].subsumes == ("FD101",)
    assert folded[1].consequences == growth.consequences + 2
    note = dataclasses.replace(growth, severity=Severity.NOTE)
    assert len(fold_explained((same, note), {"FD501": ("FD101",)})) == 2
