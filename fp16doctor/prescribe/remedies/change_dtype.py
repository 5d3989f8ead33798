"""Tries the same steps in bf16, in fp16 and in fp32.

Must not know how a format is tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.format_code import FORMAT_CODE
from fp16doctor.prescribe.stored import (
    REALISED,
    REALISED_FRACTION,
    realised_in_fp32,
    trains_half_parameters,
)
from fp16doctor.prescribe.treatable import line_target
from fp16doctor.replay.op_traits import base
from fp16doctor.schema.finding import Fault
from fp16doctor.schema.location import Phase
from fp16doctor.schema.policy import BF16, FP32, PrecisionPolicy
from fp16doctor.schema.prescription import Prescription, Remedy, RemedyKind, Verdict
from fp16doctor.schema.spelling import number

_SPELLED = {"bf16": (".bfloat16()", "torch.bfloat16"), "fp32": (".float()", "torch.float32")}
_CAST = re.compile(r"\.half\(\)|\.bfloat16\(\)|torch\.(?:float16|half|bfloat16)\b")


def propose(case: Case) -> Iterator[Prescription]:
    """One prescription a format that is not the one at hand."""
    treats = tuple(i for i, _ in case.of_precision)
    if not treats:
        return
    if case.bench is None and any(f.fault is not Fault.OVERFLOW for _, f in case.of_precision):
        return  # untried, bf16 is no answer to what rounding did
    if case.bench is not None and _is_stored_beside(case):
        yield _stored_wide(case, treats)
        return
    if "fp16" in case.formats:
        yield _tried(case, "bf16", BF16, treats)
    if case.bench is not None:
        yield _tried(case, "fp32", FP32, treats)


def _is_stored_beside(case: Case) -> bool:
    """All of it goes wrong outside the model, whose weights are fp32: autocast cannot reach it."""
    phases = {f.site.phase for _, f in case.of_precision if f.site is not None}
    tapes = case.bench.tapes if case.bench is not None else ()
    return phases == {Phase.OPTIMIZER} and not any(trains_half_parameters(t) for t in tapes)


def _stored_wide(case: Case, treats: tuple[int, ...]) -> Prescription:
    """The tensor in fp32 that overflows beside the model: an average, a sum, a moment."""
    places = dict.fromkeys(line_target(f.site) for _, f in case.of_precision if f.site is not None)
    names = [p.partition(":")[2] for p in places]
    lines = [f"# {name}: create this tensor in torch.float32" for name in names]
    written = ", ".join(f"`{name}`" for name in names)
    title = f"keep the tensor written at {written} in fp32"
    remedy = Remedy(RemedyKind.STORAGE, title, change="\n".join(lines), value="fp32")
    return case.prescribe(remedy, treats, case.bench.attempt(FP32) if case.bench else None)


def _tried(case: Case, name: str, policy: PrecisionPolicy, treats: tuple[int, ...]) -> Prescription:
    attempt = case.bench.attempt(policy) if case.bench is not None else None
    remedy = dtype_remedy(name, case.device)
    remedy = replace(remedy, change="\n".join((remedy.change, *_own_casts(case, name))))
    cure = case.prescribe(remedy, treats, attempt)
    return _with_updates(case.bench, cure) if name == "bf16" and case.bench is not None else cure


def _own_casts(case: Case, name: str) -> Iterator[str]:
    """Tell where a value went wrong in a cast that the script writes: it stays under autocast."""
    found = (s for _, f in case.of_precision for s in (f.site, f.cause_site) if s is not None)
    lines = dict.fromkeys(s.source for s in found if base(s.op) == "_to_copy")
    for line in lines:
        if line is not None and (cast := _CAST.search(line.text or "")):
            method, dtype = _SPELLED[name]
            into = method if cast[0].endswith(")") else dtype
            yield f"# and at {line.file}:{line.line} `{into}` in place of `{cast[0]}`"


def _with_updates(bench: Bench, cure: Prescription) -> Prescription:
    """Say how much of their updates weights take that would be stored in bf16, as fp16 ones are."""
    proof = cure.verification
    tapes = tuple(t for t in bench.tapes if trains_half_parameters(t))
    if not tapes or proof.verdict is not Verdict.VERIFIED or bench.exhausted:
        return cure
    with bench.timing():
        realised, _ = realised_in_fp32(tapes, parameters=True, policy=BF16)
    if realised is None:
        return cure
    few = f"stored in bf16, the weights take {number(realised)} of their updates in fp64"
    reason = proof.reason if realised >= REALISED else "; ".join(filter(None, (proof.reason, few)))
    after = {**proof.after, REALISED_FRACTION: realised}
    return replace(cure, verification=replace(proof, reason=reason, after=after))


def dtype_remedy(name: str, device: str) -> Remedy:
    """Return the change to "bf16" or "fp32" as text to paste."""
    change = FORMAT_CODE[name].replace("DEVICE", repr(device))
    return Remedy(RemedyKind.DTYPE, f"train in {name}", change=change, value=name)
