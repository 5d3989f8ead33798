from __future__ import annotations

import pytest
from making import event, observed, trace

from fp16doctor.diagnose.rules.logic_nan import logic_nan
from fp16doctor.schema.finding import Fault, Severity
from fp16doctor.schema.location import Phase, SourceLine
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
        "`div` in `blocks.2.ffn.wo`, given 0 and 0, is NaN at batch element 5, in the fp32 replay "
        "as well"
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


def _derivative(op: str, text: str | None, fmt: str = "fp32") -> str:
    line = SourceLine("train.py", 40, "<module>", text)
    met = event(
        EventKind.LOGIC, op=op, phase=Phase.BACKWARD, source=line, format=fmt,
        operands=(("input[0]", 0.25, 0.25), ("input[1]", 0.0, 0.0)),
    )  # fmt: skip
    (finding,) = logic_nan(observed(trace(met)))
    return finding.advice


@pytest.mark.parametrize(
    ("op", "text", "wanted"),
    [
        ("aten.div.Tensor", "d = (a - b).pow(2).sum(-1).sqrt()", "+ 1e-12).sqrt()"),
        ("aten.div.Tensor", "loss = (a - b).norm(dim=-1).mean() / n", "+ 1e-12).sqrt()"),
        ("aten.pow.Tensor_Scalar", "d = gap ** 0.5", "+ 1e-12).sqrt()"),
        ("aten.rsqrt.default", "angle = torch.acos(cosine)", "x.clamp(-1 + 1e-6, 1 - 1e-6)"),
        ("aten.reciprocal.default", "angle = torch.atan2(y, x)", "where both arguments are 0"),
        (
            "aten.div.Tensor",
            "h = torch.where(p > 0, p.log(), 0)",
            "a mask behind it comes too late",
        ),
        ("aten.div.Tensor", "q = torch.where(ok, a / b, 0)", "replace such divisors"),
        ("aten.sub.Tensor", "z = torch.logsumexp(a, 0)", "`x.clamp(min=-1e30)`"),
        ("aten.div.Tensor", None, "a derivative has no finite value there"),
    ],
)
def test_advice_in_backward_speaks_of_the_function_of_the_line(
    op: str, text: str | None, wanted: str
) -> None:
    advice = _derivative(op, text)
    assert wanted in advice
    assert "count" not in advice


def test_the_constant_under_a_root_is_one_the_format_holds() -> None:
    assert "+ 1e-4).sqrt()" in _derivative("aten.div.Tensor", "d = s.sqrt()", "fp16")


@pytest.mark.parametrize(
    ("op", "operand", "wanted"),
    [
        ("aten.sqrt.default", -1.0, "clamp it above 0"),
        ("aten.rsqrt.default", 0.0, "`torch.rsqrt(x + 1e-12)`"),
        ("aten.log.default", 0.0, "`x.clamp(min=1e-12)`"),
        ("aten.log1p.default", -1.0, "`x.clamp(min=1e-6 - 1)`"),
        ("aten.acos.default", 2.0, "`x.clamp(-1 + 1e-6, 1 - 1e-6)`"),
        ("aten.pow.Tensor_Scalar", -1.0, "clamp the base above 0"),
        ("aten.atan2.default", 0.0, "guard the case that has no finite result"),
    ],
)
def test_advice_in_forward_names_the_domain(op: str, operand: float, wanted: str) -> None:
    met = event(
        EventKind.LOGIC, op=op, phase=Phase.LOSS, format="fp32",
        operands=(("input[0]", operand, operand),),
    )  # fmt: skip
    (finding,) = logic_nan(observed(trace(met)))
    assert wanted in finding.advice


def test_a_zero_divisor_in_the_update_is_no_count() -> None:
    met = event(
        EventKind.LOGIC, op="aten.div.Tensor", phase=Phase.OPTIMIZER,
        operands=(("input[0]", 0.0, 0.0), ("input[1]", 0.0, 0.0)),
    )  # fmt: skip
    (finding,) = logic_nan(observed(trace(met)))
    assert "divisor of the update" in finding.advice


@pytest.mark.parametrize(
    ("text", "wanted", "other"),
    [
        ("u = x / x.norm(dim=-1, keepdim=True)", "norm.clamp(min=1e-12)", "count"),
        ("m = s / torch.bincount(y)", "count.clamp(min=1)", "norm"),
        ("m = s / keep.sum(1)", "for any other sum", "norm"),
        ("m = s / n", "for a norm", "sum"),
        ("m = a / b.norm() + c / d.sum()", "for a norm", "sum"),
    ],
)
def test_advice_names_the_divisor_that_the_line_shows(text: str, wanted: str, other: str) -> None:
    met = event(
        EventKind.LOGIC, op="aten.div.Tensor", phase=Phase.LOSS, format="fp32",
        source=SourceLine("train.py", 40, "<module>", text),
        operands=(("input[0]", 0.0, 0.0), ("input[1]", 0.0, 0.0)),
    )  # fmt: skip
    (finding,) = logic_nan(observed(trace(met)))
    assert wanted in finding.advice
    assert other not in finding.advice.partition("e.g.")[2]
