from __future__ import annotations

from making import event, observed, trace

from fp16doctor.diagnose.rules.reduction_overflow import reduction_overflow
from fp16doctor.schema.finding import Fault
from fp16doctor.schema.trace import EventKind

FIRING = observed(trace(event(op="aten.sum.dim_IntList")))
SILENT = observed(trace(event(op="aten.mm.default")))


def test_sum_is_advised_an_fp32_accumulator() -> None:
    (finding,) = reduction_overflow(FIRING)
    assert finding.what == (
        "`sum` in `blocks.2.ffn.wo` reaches 1.84e5, above the fp16 maximum 65504"
    )
    assert finding.fault is Fault.OVERFLOW
    assert "x.sum(…, dtype=torch.float32)" in finding.advice


def test_norm_is_advised_fp32_input() -> None:
    seen = observed(trace(event(op="aten.linalg_vector_norm.default")))
    (finding,) = reduction_overflow(seen)
    assert finding.advice.startswith("compute the norm in fp32")


def test_internal_overflow_of_any_op_belongs_here() -> None:
    inner = event(EventKind.INTERNAL_OVERFLOW, exact=4e4, reference_amax=4e4)
    (finding,) = reduction_overflow(observed(trace(inner)))
    assert "while it accumulates, although the exact result 4e4 fits" in finding.what
    assert "partial sum" in finding.cause


def test_every_reduction_has_advice() -> None:
    for op in ("var.correction", "cumsum.default", "logsumexp.default", "_cdist_forward.default"):
        (finding,) = reduction_overflow(observed(trace(event(op=f"aten.{op}"))))
        assert "fp32" in finding.advice
