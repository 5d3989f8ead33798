from __future__ import annotations

import math
from dataclasses import replace

import pytest
from making import event, observed, site, trace

from fp16doctor.diagnose.rules.rounded_onto_boundary import rounded_onto_boundary
from fp16doctor.prescribe.treatable import beyond_formats, of_precision, was_stored
from fp16doctor.schema.finding import Fault
from fp16doctor.schema.location import Phase
from fp16doctor.schema.trace import Event, EventKind, StoredPole


def boundary(op: str, source: str | None, *operands: tuple[str, float, float]) -> Event:
    cause = None if source is None else site(source, index=8)
    return event(
        EventKind.BOUNDARY, op=op, exact=-math.inf, reference=-18.4, operands=operands,
        cause_site=cause,
    )  # fmt: skip


LOG = boundary("aten.log.default", "aten._softmax.default", ("self", 0.0, 1e-8))
FIRING = observed(trace(LOG))
SILENT = observed(
    trace(event(EventKind.BOUNDARY, op="aten.sqrt.default", operands=(("self", -1e-4, 1e-8),)))
)


def test_log_of_a_flushed_probability() -> None:
    (finding,) = rounded_onto_boundary(FIRING)
    assert finding.what == "1e-8 is 0 in fp16, so that `log` in `blocks.2.ffn.wo` is −inf"
    assert finding.fault is Fault.NAN_BIRTH
    assert "smallest non-zero magnitude is 2⁻²⁴" in finding.cause
    assert finding.advice == "use `torch.log_softmax` or `F.cross_entropy` on the logits"


def test_a_divisor_that_became_zero_is_called_so() -> None:
    operands = (("self", 0.5, 0.5), ("other", 0.0, 1e-8))
    (finding,) = rounded_onto_boundary(
        observed(trace(boundary("aten.div.Tensor", "aten.add.Tensor", *operands)))
    )
    assert finding.what.startswith("the divisor 1e-8 is 0 in fp16, so that `div`")


def test_the_divisor_of_an_optimizer_is_told_with_its_eps() -> None:
    operands = (("input[1]", 0.0, 0.0), ("input[2]", 0.0, 1e-8))
    step = boundary("aten.addcdiv_.default", "aten.add_.Tensor", *operands)
    step = replace(step, site=replace(step.site, phase=Phase.OPTIMIZER))
    (finding,) = rounded_onto_boundary(observed(trace(step)))
    assert finding.what.startswith("the optimizer's divisor (root + eps) 1e-8 is 0 in fp16")


def test_a_value_that_the_format_holds_became_zero_by_the_roundings_before_it() -> None:
    log = boundary("aten.log.default", "aten.sub.Tensor", ("self", 0.0, 1e-3))
    (finding,) = rounded_onto_boundary(observed(trace(log)))
    assert finding.what == (
        "a value that is 0.001 in the fp32 replay became 0, so that `log` in `blocks.2.ffn.wo` "
        "is −inf"
    )
    assert finding.cause.startswith(
        "The fp32 replay has 0.001, which fp16 holds; roundings in `aten.sub.Tensor` in "
    )
    assert "smallest non-zero magnitude" not in finding.cause


def test_eps_that_became_zero() -> None:
    operands = (("self", 1e-3, 1e-3), ("other", 0.0, 1e-8))
    seen = observed(trace(boundary("aten.div.Tensor", "aten.add.Tensor", *operands)))
    (finding,) = rounded_onto_boundary(seen)
    assert "raise eps to a value that fp16 can hold, at least 2⁻¹⁴" in finding.advice


def test_zero_by_zero_names_the_divisor() -> None:
    operands = (("self", 0.0, 1e-9), ("other", 0.0, 2e-8))
    (finding,) = rounded_onto_boundary(
        observed(trace(boundary("aten.div.Tensor", None, *operands)))
    )
    assert "2e-8 is 0" in finding.what


def test_one_minus_a_sigmoid_that_rounded_to_one() -> None:
    log1p = boundary("aten.log1p.default", "aten.sigmoid.default", ("self", -1.0, -0.9999))
    (finding,) = rounded_onto_boundary(observed(trace(log1p)))
    assert "spacing below 1 is 2⁻¹¹" in finding.cause
    assert "binary_cross_entropy_with_logits" in finding.advice


@pytest.mark.parametrize("cause_as_run", [0.0, 1.0])
def test_upstream_cause_alone_is_enough(cause_as_run: float) -> None:
    born = event(
        EventKind.BOUNDARY, op="aten.log.default", cause_as_run=cause_as_run, cause_exact=1e-9
    )
    assert len(list(rounded_onto_boundary(observed(trace(born))))) == 1


def test_a_value_upstream_is_not_told_as_the_operand() -> None:
    root = event(
        EventKind.BOUNDARY, op="aten.sqrt.default", exact=math.nan, n_nan=1, reference=0.1,
        operands=(("input[0]", -0.002, 0.01),), cause_site=site("aten.cos.default", index=8),
        cause_as_run=-1.0, cause_exact=-0.995,
    )  # fmt: skip
    (finding,) = rounded_onto_boundary(observed(trace(root)))
    assert finding.what == (
        "what `cos` in `blocks.2.ffn.wo` gave is −1, in the fp32 replay −0.995, so that `sqrt` in "
        "`blocks.2.ffn.wo` is NaN at −0.002"
    )
    assert finding.evidence[0].quantity == "value upstream"


def test_a_value_that_no_rounding_brought_out_of_the_domain() -> None:
    root = event(
        EventKind.BOUNDARY, op="aten.sqrt.default", exact=math.nan, n_nan=1, reference=math.nan,
        operands=(("input[0]", -1.0, -0.995),),
    )  # fmt: skip
    (finding,) = rounded_onto_boundary(observed(trace(root)))
    assert finding.what.endswith(
        "is NaN, given a value outside its domain: −0.995 in the fp32 replay"
    )
    assert "both lie outside the domain of `sqrt`" in finding.cause


def test_a_value_that_was_rounded_before_the_step() -> None:
    stored = StoredPole(site("aten.rsub.Scalar", index=7), 1.0, "bf16", "share")
    div = event(EventKind.LOGIC, op="aten.div.Tensor", stored=stored)
    (finding,) = rounded_onto_boundary(observed(trace(div)))
    assert "`share` holds exactly 1 in bf16, and its difference from 1 is 0" in finding.what
    assert "every number from 0.99805 to 1.0039 is 1" in finding.cause
    assert finding.advice.startswith("make and hold `share` in fp32")
    assert was_stored(finding)
    assert not of_precision((finding,))
    assert not beyond_formats(finding)


def test_a_divisor_without_an_eps_is_not_told_to_raise_one() -> None:
    operands = (("self", 1e-3, 1e-3), ("other", 0.0, 1e-8))
    div = boundary("aten.div.Tensor", "aten.amax.default", *operands)
    (finding,) = rounded_onto_boundary(observed(trace(div)))
    assert "raise eps" not in finding.advice
    assert finding.advice.startswith("compute the divisor in fp32: ")
    assert "a number that fp16 can hold, at least 2⁻¹⁴" in finding.advice
