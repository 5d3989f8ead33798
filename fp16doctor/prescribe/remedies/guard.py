"""Tries a guard in the script's own line where no format helps: the operand has no finite result.

A guard counts as verified where the step in which the fault arose is finite with it, loss,
gradients and parameters, and is that of fp32 with the same guard, and where steps without the
fault are with it what they are without. Where most of what an op was given lies outside its domain
a guard would hide a wrong sign: then no guard is told.

Must not know how a guard is put into a line or a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fp16doctor.errors import ReplayError
from fp16doctor.prescribe.acceptance import BEYOND_ROUNDING, LOSS_ALONE, gradient_error
from fp16doctor.prescribe.bench import BUDGET_SPENT, Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.edit import diff
from fp16doctor.prescribe.guard_words import hides_a_sign, in_words, is_most_of_it, reach
from fp16doctor.prescribe.guards import QUOTIENTS, Cure, Place, cures_of, mask_of, place_of
from fp16doctor.prescribe.treatable import beyond_formats, format_of
from fp16doctor.replay.casting import REFUSALS
from fp16doctor.replay.trial import Trial, run_trial
from fp16doctor.schema.finding import Fault, Finding
from fp16doctor.schema.policy import FP32
from fp16doctor.schema.prescription import (
    Prescription,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)
from fp16doctor.schema.tape import Tape

_NOT_EXPRESSED = "the recorded step does not show what the edit would change in backward"
_NOT_TRIED = "it needs an edit of the script, which was not tried"


def propose(case: Case) -> Iterator[Prescription]:
    """The first guard that is accepted for a finding; words where none can be told."""
    bench = case.beyond or case.bench
    if bench is None or bench.exhausted:
        return
    for position, finding in case.demanding:
        if not (beyond_formats(finding) or _in_full_precision(finding)):
            continue
        try:
            found = _for(case, bench, position, finding)
        except (ReplayError, *REFUSALS):
            found = None  # the finding's own words are told
        if found is not None:
            yield found


def _in_full_precision(finding: Finding) -> bool:
    """Born in fp32 or wider: a still wider format is no help in training."""
    return finding.fault is Fault.NAN_BIRTH and format_of(finding) in ("fp32", "fp64")


def _is_finite_in_fp32(bench: Bench | None, tape: Tape) -> bool:
    """Then a format is the cure: 16 bits somewhere in front of an fp32 op led to its operand."""
    found = [i for i, t in enumerate(_tapes(bench)) if t is tape]
    return bench is not None and bool(found) and bench.reference(found[0]).finite


def _tapes(bench: Bench | None) -> tuple[Tape, ...]:
    return bench.tapes if bench is not None else ()


def _for(case: Case, bench: Bench, position: int, finding: Finding) -> Prescription | None:
    site = finding.site
    steps = (*_tapes(case.beyond), *_tapes(case.bench))
    tape = next((t for t in steps if site is not None and t.step == site.step), None)
    if tape is None or (not beyond_formats(finding) and _is_finite_in_fp32(case.bench, tape)):
        return None
    mask = mask_of(tape, finding)
    beside = tuple(t for t in steps if t is not tape)
    with bench.timing():
        place = None if mask is not None else place_of(tape, finding, beside)
    if place is not None and (hides_a_sign(place) or is_most_of_it(place)):
        return _told(position, in_words(place))
    cures = [mask] if mask is not None else [] if place is None else list(cures_of(place))
    tried = ((cure, _proof(case, bench, tape, cure)) for cure in cures)
    kept = [(c, p) for c, p in tried if p.verdict is not Verdict.REFUTED]
    best = next((k for k in kept if k[1].verdict is Verdict.VERIFIED), next(iter(kept), None))
    if best is not None:
        return Prescription(_remedy(best[0]), (position,), _bounded(best[1], place))
    return None if place is None else _told(position, in_words(place))


def _bounded(proof: Verification, place: Place | None) -> Verification:
    """Say beside a proof how far it goes."""
    if proof.verdict is not Verdict.VERIFIED:
        return proof
    off = proof.after.get("gradient error", 0.0)
    bounds = [reach(place) if place is not None and place.op not in QUOTIENTS else ""]
    if off > BEYOND_ROUNDING:
        bounds.append(f"its gradient is {100 * off:.2g} % off fp32 with the same guard")
    said = "; ".join(filter(None, bounds))
    steps = ", ".join(map(str, proof.steps))
    return replace(proof, reason=f"by replay of step {steps}; {said}") if said else proof


def _told(position: int, words: str) -> Prescription | None:
    """What to change, without a line that was tried."""
    if not words:
        return None
    proof = Verification(Verdict.NOT_VERIFIED, reason=_NOT_TRIED)
    return Prescription(Remedy(RemedyKind.CODE_FIX, words), (position,), proof)


def _remedy(cure: Cure) -> Remedy:
    at = f"{cure.line.file}:{cure.line.line}"
    title = f"{cure.what}: `{cure.text}` at {at}"
    return Remedy(RemedyKind.CODE_FIX, title, diff(cure.line, cure.text), (f"line:{at}",))


def _proof(case: Case, bench: Bench, tape: Tape, cure: Cure) -> Verification:
    """The step with the guard, as it would run, against fp32 with the guard."""
    if bench.exhausted:
        return Verification(Verdict.NOT_VERIFIED, reason=BUDGET_SPENT)
    edited, sound = cure.edit(tape), _tapes(case.bench)
    if edited is None:
        return Verification(Verdict.NOT_VERIFIED, reason=_NOT_EXPRESSED)
    window = case.bench.window if case.bench is not None else ()
    guarded = tuple(t for t in map(cure.edit, window) if t is not None)
    with bench.timing():
        before = Bench((tape,), bench.left_s)
        proof = before.verification(Bench((edited,), bench.left_s, window=guarded).as_settled())
        changed = next(filter(None, (_changes(t, cure.edit(t)) for t in sound)), "")
    if changed and proof.verdict is Verdict.VERIFIED:
        return Verification(Verdict.REFUTED, changed, proof.before, proof.after, proof.steps)
    return proof


def _changes(tape: Tape, edited: Tape | None) -> str:
    """Return what a guard changes of a step that shows no fault, "" for nothing."""
    if edited is None or edited is tape:
        return ""
    one, other = run_trial(tape, FP32), run_trial(edited, FP32)
    if not one.finite or not _differ(one, other):
        return ""
    return f"step {tape.step}, which is finite without the guard, is another one with it"


def _differ(one: Trial, other: Trial) -> bool:
    if not other.finite or (gradient_error(one, other) or 0.0) > BEYOND_ROUNDING:
        return True
    before, after = one.loss or 0.0, other.loss or 0.0
    return abs(before - after) > LOSS_ALONE * max(abs(before), abs(after))
