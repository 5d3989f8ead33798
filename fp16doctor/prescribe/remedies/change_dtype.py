"""Tries the same steps in bf16, in fp16 and in fp32.

Must not know how a format is tried.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.prescribe.case import Case
from fp16doctor.schema.finding import Fault
from fp16doctor.schema.policy import BF16, FP32, PrecisionPolicy
from fp16doctor.schema.prescription import Prescription, Remedy, RemedyKind

_CHANGES = {
    "bf16": "with torch.autocast(DEVICE, dtype=torch.bfloat16):  # or model.bfloat16()",
    "fp32": "with torch.autocast(DEVICE, enabled=False):  # or model.float()",
}


def propose(case: Case) -> Iterator[Prescription]:
    """One prescription a format that is not the one at hand."""
    treats = tuple(i for i, _ in case.of_precision)
    if not treats:
        return
    if case.bench is None and any(f.fault is not Fault.OVERFLOW for _, f in case.of_precision):
        return  # untried, bf16 is no answer to what rounding did
    if "fp16" in case.formats:
        yield _tried(case, "bf16", BF16, treats)
    if case.bench is not None:
        yield _tried(case, "fp32", FP32, treats)


def _tried(case: Case, name: str, policy: PrecisionPolicy, treats: tuple[int, ...]) -> Prescription:
    title = "train in bf16" if name == "bf16" else "train in fp32"
    remedy = Remedy(
        RemedyKind.DTYPE,
        title,
        change=_CHANGES[name].replace("DEVICE", repr(case.device)),
        value=name,
    )
    attempt = case.bench.attempt(policy) if case.bench is not None else None
    return case.prescribe(remedy, treats, attempt)
