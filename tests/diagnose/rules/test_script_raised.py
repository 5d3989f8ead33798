from __future__ import annotations

import pytest
from making import LINE, attempts, event, observed, plain, site, trace

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.diagnose.rule import Observations
from fp16doctor.diagnose.rules.script_raised import script_raised
from fp16doctor.schema.finding import Fault, Severity
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.recording import Outcome, OutcomeKind
from fp16doctor.schema.trace import ReplayTrace


def raised(
    message: str, *traces: ReplayTrace, by: OpSite | None = None, kind: str = "RuntimeError"
) -> Observations:
    outcome = Outcome(OutcomeKind.RAISED, 1, kind, message, LINE, by)
    return observed(*traces, steps=attempts(".."), outcome=outcome)


FIRING = raised("No inf checks were recorded for this optimizer.", kind="AssertionError")
SILENT = observed(steps=plain(3), outcome=Outcome(OutcomeKind.EXITED, 3))

# As raised by torch 2.13 on a CPU, but for the two of CUDA and apex.
REFUSED = [
    "No inf checks were recorded for this optimizer.",
    "Attempting to unscale FP16 gradients.",
    "unscale_() has already been called on this optimizer since the last update().",
    "unscale_() is being called after step().",
    "step() has already been called since the last update().",
    "Attempted step but _scale is None.  This may indicate your script did not use …",
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n",
    "value cannot be converted to type c10::Half without overflow",
    "value cannot be converted to type at::BFloat16 without overflow",
    "expected m1 and m2 to have the same dtype, but got: float != c10::Half",
    "mat1 and mat2 must have the same dtype, but got Half and Float",
    "expected scalar type Half but found Float",
    "expected scalar type Float but found BFloat16",
    "Input type (torch.FloatTensor) and weight type (torch.HalfTensor) should be the same",
    "Input type (float) and bias type (c10::Half) should be the same",
    "Index put requires the source and destination dtypes match, got Float for the destination "
    "and Half for the source.",
    "index_add_(): self (Float) and source (Half) must have the same scalar type",
    "Input dtypes must be the same, got: input float, batch1: c10::Half, batch2: c10::Half",
    "RNN input dtype (torch.float16) does not match weight dtype (torch.float32).",
    "mixed dtype (CPU): expect parameter to have scalar type of Float",
    "\"cdist\" not implemented for 'Half'",
    "linalg.inv: Low precision dtypes not supported. Got Half",
    "Found param w with type torch.cuda.HalfTensor, expected torch.cuda.FloatTensor.",
]


@pytest.mark.parametrize("message", REFUSED)
def test_refusals_of_mixed_precision_are_misuse(message: str) -> None:
    (finding,) = script_raised(raised(message))
    assert (finding.fault, finding.severity) == (Fault.MISUSE, Severity.ERROR)
    assert finding.cause
    assert finding.advice
    assert message[:20] in finding.what


def test_site_is_the_line_where_no_op_raised() -> None:
    (finding,) = script_raised(FIRING)
    assert finding.site is not None
    assert (finding.site.source, finding.site.op, finding.site.step) == (LINE, "", 1)
    assert finding.site.phase is Phase.SCRIPT


def test_site_is_the_op_that_raised() -> None:
    op = site("aten.masked_fill.Scalar")
    (finding,) = script_raised(raised(REFUSED[7], by=op))
    assert finding.site == op


@pytest.mark.parametrize("message", ["'lr'", "loss is NaN", "index 7 is out of range", ""])
def test_other_exceptions_are_notes(message: str) -> None:
    (finding,) = script_raised(raised(message, kind="KeyError"))
    assert (finding.fault, finding.severity) == (Fault.OBSERVATION, Severity.NOTE)
    assert "No non-finite value was seen" in finding.cause


def test_note_points_at_what_was_non_finite_before() -> None:
    (finding,) = script_raised(raised("loss is NaN", trace(event()), kind="ValueError"))
    assert finding.severity is Severity.NOTE
    assert "see `aten.mm.default` in `blocks.2.ffn.wo` at `train.py:40` in step 0" in finding.cause


def test_nan_check_in_mid_step_makes_the_birth_the_finding() -> None:
    born = event(step=2, reaches=(), first_nan=site("aten.sub.Tensor", index=20, step=2))
    seen = raised("loss is NaN", trace(born, step=2), kind="AssertionError")
    findings, _ = diagnose(seen)
    assert [(f.code, f.severity) for f in findings] == [
        ("FD101", Severity.ERROR),
        ("FD901", Severity.NOTE),
    ]
    assert "The script ended in this step" in findings[0].cause
    assert "in step 2" in findings[1].cause
    assert findings[1].site is not None
    assert findings[1].site.step == 2
