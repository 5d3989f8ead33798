from __future__ import annotations

from dataclasses import replace

from making import event, observed, site, trace

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.diagnose.rules.healed_nonfinite import healed_nonfinite
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.trace import EventKind

INF = float("inf")
RELU = site("aten.threshold_backward.default", index=12, phase=Phase.BACKWARD)
ROOT = event(
    EventKind.HEALED, op="aten.div.Tensor", phase=Phase.BACKWARD, n_inf=3, exact=INF,
    reference=INF, reference_amax=None, reaches=(), later_nonfinite=0, healed_by=RELU,
)  # fmt: skip
FIRING = observed(trace(ROOT))
SILENT = observed(
    trace(event(EventKind.INTENDED, op="aten.masked_fill.Scalar", reaches=())),
    trace(replace(ROOT, kind=EventKind.LOGIC, reaches=("gradients",)), step=1),
)


def test_names_the_birth_and_the_op_that_takes_it_out_again() -> None:
    (finding,) = healed_nonfinite(FIRING)
    assert finding.what == (
        "`div` in `blocks.2.ffn.wo` is inf in backward, in the fp32 replay as well, "
        "and a later op takes it out again"
    )
    assert finding.cause == (
        "`aten.threshold_backward.default` in `blocks.2.ffn.wo` at `train.py:40` makes finite "
        "values of it. It reaches no loss, gradient, parameter or buffer."
    )
    assert [s.op for s in finding.chain] == ["aten.div.Tensor", RELU.op]
    assert (finding.evidence[0].count, finding.evidence[0].total) == (3, 4096)


def test_it_is_a_note_without_advice_and_no_cause_of_anything() -> None:
    overflow = event(index=50)
    found, _ = diagnose(observed(trace(ROOT, overflow)))
    assert [(f.code, f.severity) for f in found] == [
        ("FD101", Severity.ERROR),
        ("FD114", Severity.NOTE),
    ]
    assert found[0].consequences == overflow.later_nonfinite
    assert found[1].advice == ""


def test_the_same_line_in_every_step_is_one_note() -> None:
    again = replace(ROOT, site=replace(ROOT.site, step=1))
    (finding,), _ = diagnose(observed(trace(ROOT), trace(again, step=1)))
    assert [s.step for s in finding.repeats] == [1]
