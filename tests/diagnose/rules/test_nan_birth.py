from __future__ import annotations

import dataclasses

from making import event, observed, sink, site, trace

from fp16doctor.diagnose.rules.nan_birth import nan_birth
from fp16doctor.prescribe.plan import plan
from fp16doctor.schema.finding import Fault, Severity
from fp16doctor.schema.prescription import RecommendationStatus
from fp16doctor.schema.trace import EventKind

ROOT = event(
    EventKind.BOUNDARY,
    op="aten.sqrt.default",
    n_inf=0,
    n_nan=1,
    exact=float("nan"),
    reference=1.1e-4,
    operands=(("self", -3.1e-4, 1.2e-8),),
    cause_site=site("aten.sub.Tensor", index=8),
)
FIRING = observed(trace(ROOT))
SILENT = observed(
    trace(event(EventKind.BOUNDARY, op="aten.log.default", operands=(("self", 0.0, 1e-8),)))
)
UNKNOWN = event(EventKind.UNKNOWN, op="mylib.fused.default", exact=None, reference=None)


def test_operand_out_of_the_domain_is_named_with_both_values() -> None:
    (finding,) = nan_birth(FIRING)
    assert finding.what == (
        "`sqrt` in `blocks.2.ffn.wo` of −0.00031 is NaN; the fp32 replay has 0.00011"
    )
    assert "from 1.2e-8 to −0.00031, out of the domain of `sqrt`" in finding.cause
    assert "it began in `aten.sub.Tensor`" in finding.cause
    assert finding.cause_site == ROOT.cause_site
    assert finding.fault is Fault.NAN_BIRTH


def test_without_operands_the_rounding_upstream_is_named() -> None:
    born = dataclasses.replace(ROOT, operands=(), cause_as_run=-2.5e-4, cause_exact=1e-8)
    (finding,) = nan_birth(observed(trace(born)))
    assert finding.cause.startswith(
        "Rounding in `aten.sub.Tensor` in `blocks.2.ffn.wo` at `train.py:40` moved a value from "
        "1e-8 to −0.00025"
    )


def test_op_that_could_not_be_replayed_is_likely_and_no_error() -> None:
    (finding,) = nan_birth(observed(trace(UNKNOWN)))
    assert finding.cause.startswith("Likely")
    assert finding.severity is Severity.WARNING


def test_unreplayed_op_without_impact_is_a_note() -> None:
    harmless = event(EventKind.UNKNOWN, exact=None, reference=None, reaches=())
    (finding,) = nan_birth(observed(trace(harmless)))
    assert finding.severity is Severity.NOTE


def test_where_the_reference_is_not_finite_either_a_wider_format_is_no_advice() -> None:
    failing = (sink("loss", None, nonfinite_reference=1), sink("gradients"))
    (finding,) = nan_birth(observed(trace(ROOT, sinks=failing)))
    assert "a wider format alone is no cure" in finding.cause
    assert finding.advice.startswith("clamp it above 0")
    _, recommendation = plan([finding])
    assert recommendation.status is RecommendationStatus.NOT_PRECISION
