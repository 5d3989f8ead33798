"""Tries other formats on a call that raised and ended the script.

Must not know how a step without an end is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.constants import is_beyond
from fp16doctor.prescribe.paste import pasted
from fp16doctor.prescribe.refusal import proof_of, refused_call, refused_finding
from fp16doctor.prescribe.remedies.change_dtype import dtype_remedy
from fp16doctor.prescribe.steps import device_of
from fp16doctor.prescribe.treatable import line_target
from fp16doctor.schema.policy import BF16, FP32, KeepRule, PrecisionPolicy
from fp16doctor.schema.prescription import Prescription, Remedy, RemedyKind


def propose(case: Case) -> Iterator[Prescription]:
    """The call's line in fp32, the step in bf16, the step in fp32.

    Only for a constant that the format cannot hold: there the format is what was refused.
    """
    found = refused_finding(case)
    if found is None or not is_beyond(refused_call(found[2])):
        return
    position, _, tape = found
    place = line_target(refused_call(tape).site)
    device = device_of(tape)
    keep = Remedy(
        RemedyKind.FP32_KEEP,
        f"keep `{place.partition(':')[2]}` in fp32",
        change=pasted((place,), device, tape),
        target=(place,),
    )
    kept = PrecisionPolicy("keep-list", keep=(KeepRule(place),))
    yield Prescription(keep, (position,), proof_of(tape, kept))
    for name, policy in (("bf16", BF16), ("fp32", FP32)):
        yield Prescription(dtype_remedy(name, device), (position,), proof_of(tape, policy))
