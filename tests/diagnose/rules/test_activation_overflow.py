from __future__ import annotations

import pytest
from making import event, observed, plain, sink, trace

from fp16doctor.diagnose.rules.activation_overflow import activation_overflow
from fp16doctor.schema.finding import Fault, Severity

FIRING = observed(trace(event()), steps=plain(3))
SILENT = observed(trace(event(op="aten.sum.default")), steps=plain(3))


def test_names_the_module_the_value_and_the_limit() -> None:
    (finding,) = activation_overflow(FIRING)
    assert finding.what == (
        "the output of `blocks.2.ffn.wo` reaches 1.84e5, above the fp16 maximum 65504"
    )
    assert finding.fault is Fault.OVERFLOW
    assert finding.severity is Severity.ERROR
    assert finding.advice == ("keep `blocks.2.ffn.wo` in fp32, or train in bf16 (maximum 3.39e38)")
    assert "214 later ops inherit it. It reaches the loss and gradients." in finding.cause
    assert finding.consequences == 214


def test_evidence_stands_against_the_overflow_threshold() -> None:
    (finding,) = activation_overflow(FIRING)
    amax, headroom, count = finding.evidence
    assert (amax.measured, amax.limit, amax.worst_index) == (1.84e5, 65520.0, (3, 17))
    assert amax.source == "replayed:fp32"
    assert headroom.measured == pytest.approx(-1.49, abs=0.01)
    assert (count.count, count.total) == (12, 4096)


def test_bf16_overflow_is_not_advised_to_use_bf16() -> None:
    seen = observed(trace(event(format="bf16", exact=1e39, reference_amax=1e39)))
    (finding,) = activation_overflow(seen)
    assert "bf16 maximum 3.39e38" in finding.what
    assert "train in" not in finding.advice


def test_silent_wrong_loss_is_said_with_both_values() -> None:
    healed = event(op="aten.pow.Tensor_Scalar", reaches=())
    step = trace(healed, sinks=(sink("loss", error=0.4),), loss=2.5, loss_reference=1.75)
    (finding,) = activation_overflow(observed(step, steps=plain(1)))
    assert finding.severity is Severity.ERROR
    assert "finite and wrong, 2.5; the fp32 replay has 1.75" in finding.cause
    assert finding.advice.startswith("compute the square in fp32")
    assert "|x| = 256" in finding.advice


def test_integers_beyond_the_format_are_named_as_such() -> None:
    counted = event(op="aten.arange.start_step", integer_operand=True, exact=7e4)
    (finding,) = activation_overflow(observed(trace(counted)))
    assert "converted from integers" in finding.what
    assert "fp32 or as integers" in finding.advice


def test_a_factor_beyond_the_format_is_no_mask() -> None:
    scaled = event(op="aten.mul.Tensor", constant=131072.0, exact=3.1e5)
    (finding,) = activation_overflow(observed(trace(scaled)))
    assert "The constant 131072 is above the fp16 maximum 65504." in finding.cause


def test_no_advice_where_nothing_received_it() -> None:
    (finding,) = activation_overflow(observed(trace(event(reaches=()))))
    assert finding.severity is Severity.NOTE
    assert finding.advice == ""
    assert "reaches no loss, gradient, parameter or buffer" in finding.cause


def test_a_cast_is_told_by_what_it_is_given() -> None:
    cast = event(op="aten._to_copy.default", exact=7e4, reference=7e4, reference_amax=7e4)
    (finding,) = activation_overflow(observed(trace(cast)))
    assert finding.what == (
        "a value of 7e4 is cast to fp16 in `blocks.2.ffn.wo`, above the fp16 maximum 65504"
    )
    assert finding.advice.startswith("scale or clamp the value in front of the cast, or ")
