from __future__ import annotations

import pytest
from making import event, observed, sink, trace

from fp16doctor.diagnose.rules.mask_fill_overflow import mask_fill_overflow
from fp16doctor.schema.finding import Fault, Severity

FIRING = observed(trace(event(op="aten.add.Tensor", constant=-1e9, exact=-1e9)))
SILENT = observed(trace(event(op="aten.add.Tensor", operands=(("self", 4e4, 4.1e4),))))
HARMLESS = event(op="aten.masked_fill.Scalar", constant=-1e9, exact=-1e9, reaches=())


def test_names_the_constant_and_the_limit() -> None:
    (finding,) = mask_fill_overflow(FIRING)
    assert finding.what == (
        "mask value −1e9 in `blocks.2.ffn.wo` is −inf in fp16, beyond the fp16 maximum 65504"
    )
    assert finding.fault is Fault.OVERFLOW
    assert "finite mask value for rows without any entry" in finding.advice


def test_finfo_min_plus_bias_is_a_mask() -> None:
    operands = (("self", -65504.0, -65504.0), ("other", -16.0, -15.998))
    seen = observed(trace(event(op="aten.add.Tensor", exact=-65520.0, operands=operands)))
    (finding,) = mask_fill_overflow(seen)
    assert "combines −65504 and −16" in finding.cause


def test_large_negative_activations_are_no_mask() -> None:
    operands = (("self", -4.0e4, -4.01e4), ("other", -4.0e4, -3.99e4))
    seen = observed(trace(event(op="aten.add.Tensor", exact=-8e4, operands=operands)))
    assert not list(mask_fill_overflow(seen))


@pytest.mark.parametrize("op", ["aten.mul.Tensor", "aten._to_copy.default"])
def test_mask_by_product_or_cast(op: str) -> None:
    constant = -1e9 if "mul" in op else None
    born = event(op=op, constant=constant, exact=-1e9, operands=(("self", -1e9, -1e9),))
    assert len(list(mask_fill_overflow(observed(trace(born))))) == 1


def test_mask_in_front_of_softmax_is_a_note_even_in_an_inexact_step() -> None:
    inexact = (sink("loss"), sink("gradients", error=0.7))
    (finding,) = mask_fill_overflow(observed(trace(HARMLESS, sinks=inexact)))
    assert finding.severity is Severity.NOTE
