from __future__ import annotations

from making import event, observed, trace

from fp16doctor.diagnose.rules.logic_nan import logic_nan
from fp16doctor.schema.finding import Fault, Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.trace import EventKind

EMPTY_ROW = event(
    EventKind.LOGIC, op="aten.div.Tensor", n_inf=0, n_nan=1, exact=None, reference=None,
    operands=(("self", 0.0, 0.0), ("other", 0.0, 0.0)), element=(5,),
)  # fmt: skip
FIRING = observed(trace(EMPTY_ROW))
SILENT = observed(trace(event(EventKind.INTENDED, op="aten.masked_fill.Scalar", reaches=())))


def test_names_op_line_and_batch_element_and_rules_precision_out() -> None:
    (finding,) = logic_nan(FIRING)
    assert finding.what == (
        "`div` in `blocks.2.ffn.wo` is NaN at batch element 5, in the fp32 replay as well"
    )
    assert "at `train.py:40`" in finding.cause
    assert "no dtype, loss scale or keep-list changes it" in finding.cause
    assert "clamp the divisor away from 0" in finding.advice
    assert (finding.fault, finding.severity) == (Fault.NAN_BIRTH, Severity.ERROR)


def test_advice_for_a_row_without_entries() -> None:
    seen = observed(trace(event(EventKind.LOGIC, op="aten._softmax.default")))
    (finding,) = logic_nan(seen)
    assert "rows without any unmasked entry" in finding.advice


def test_an_optimizer_works_on_parameters_not_on_a_batch() -> None:
    update = event(EventKind.LOGIC, op="aten.addcdiv_.default", phase=Phase.OPTIMIZER)
    (finding,) = logic_nan(observed(trace(update)))
    assert "batch element" not in finding.what + finding.advice
