"""Tries the GradScaler used as it should be, and the step without one.

Must not know how a step is edited or measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.format_code import FORMAT_CODE
from fp16doctor.prescribe.intended import verify
from fp16doctor.prescribe.treatable import SCALER_USE, codes_of, line_target, misuses_scaler
from fp16doctor.replay.scaler_use import (
    Edit,
    divided_once,
    injection_scaled,
    losses_scaled,
    penalty_unscaled,
    skipped_until_finite,
    unscaled_by_step,
    unscaled_first,
    unscaled_once,
    without_scaler,
)
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.policy import BF16, FP32, PrecisionPolicy
from fp16doctor.schema.prescription import Prescription, Remedy, RemedyKind
from fp16doctor.schema.tape import Tape

# Formats that need no loss scale.
FORMATS = (("bf16", BF16, FORMAT_CODE["bf16"]), ("fp32", FP32, FORMAT_CODE["fp32"]))
_NO_SCALER = "scaler = torch.amp.GradScaler(DEVICE, enabled=False)  # or none at all\n"


def propose(case: Case) -> Iterator[Prescription]:
    """The right use for each finding of a wrong one, then the formats that need no scaler."""
    wrong = [(i, f) for i, f in case.demanding if misuses_scaler(f)]
    if not wrong or case.bench is None:
        return
    for position, finding in wrong:
        remedy = Remedy(RemedyKind.CODE_FIX, finding.advice, target=_line(finding))
        edit = _EDITS[finding.code](finding)
        yield Prescription(remedy, (position,), verify(case.bench, edit))
    # An update that is the one of fp32 is so in spite of whatever else had been wrong.
    others = {i for i, _ in case.of_precision}
    treats = tuple(i for i, f in case.demanding if codes_of(f) & SCALER_USE or i in others)
    for name, policy, change in FORMATS:
        yield _without(case, name, policy, change, treats)


def _without(
    case: Case, name: str, policy: PrecisionPolicy, change: str, treats: tuple[int, ...]
) -> Prescription:
    assert case.bench is not None
    proof = verify(case.bench, without_scaler, policy)
    return Prescription(unscaled_remedy(name, change, case.device), treats, proof)


def unscaled_remedy(name: str, change: str, device: str) -> Remedy:
    """Return a format and no loss scale as text to paste."""
    return Remedy(
        RemedyKind.DTYPE,
        f"train in {name} without a loss scale",
        change=(_NO_SCALER + change).replace("DEVICE", repr(device)),
        value=name,
    )


def _line(finding: Finding) -> tuple[str, ...]:
    return () if finding.site is None else (line_target(finding.site),)


def _at_site(edit: Callable[[Tape, OpSite], Tape | None]) -> Callable[[Finding], Edit]:
    def of(finding: Finding) -> Edit:
        site = finding.site
        return lambda tape: None if site is None else edit(tape, site)

    return of


# How the step of each finding would run under the finding's advice.
_EDITS: dict[str, Callable[[Finding], Edit]] = {
    "FD402": lambda finding: unscaled_first,
    "FD403": lambda finding: unscaled_by_step,
    "FD405": lambda finding: unscaled_once,
    "FD406": _at_site(divided_once),
    "FD409": _at_site(injection_scaled),
    "FD410": lambda finding: losses_scaled,
    "FD411": lambda finding: penalty_unscaled,
    "FD412": lambda finding: skipped_until_finite,
}
assert _EDITS.keys() == SCALER_USE
