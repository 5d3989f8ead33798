"""From findings to tried prescriptions and one recommendation.

Must not know the words of findings or how a report shows a cure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.beside_guards import without_advice
from fp16doctor.prescribe.beside_misuse import held_to_intended
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.joint import joint_cures
from fp16doctor.prescribe.notes import note
from fp16doctor.prescribe.paste_forms import with_forms
from fp16doctor.prescribe.ranking import Rank, rank
from fp16doctor.prescribe.reach import with_reach
from fp16doctor.prescribe.remaining import faults_of
from fp16doctor.prescribe.remedies import prescriptions
from fp16doctor.prescribe.rising import with_rises
from fp16doctor.prescribe.treatable import (
    OF_PRECISION,
    OF_ROUNDING,
    SCALER_USE,
    codes_of,
    demanding,
    fails_anyway,
    is_refusal,
    rises,
)
from fp16doctor.prescribe.twins import without_twins
from fp16doctor.schema.finding import Fault, Finding
from fp16doctor.schema.precision import UpdateLoss
from fp16doctor.schema.prescription import (
    Prescription,
    Recommendation,
    RecommendationStatus,
    RemedyKind,
    Verdict,
)
from fp16doctor.schema.recording import RunInfo
from fp16doctor.schema.tape import Tape

_PRESCRIBED = RecommendationStatus.PRESCRIBED
_LOGIC = ("logic-nan", "nonfinite-input", "diverged-training")


def plan(
    findings: Sequence[Finding],
    bench: Bench | None = None,
    updates: tuple[UpdateLoss, ...] = (),
    *,
    lost: bool = False,
    refused: Tape | None = None,
    run: RunInfo | None = None,
    beyond: Bench | None = None,
) -> tuple[tuple[Prescription, ...], Recommendation]:
    """Prescriptions for ``findings`` (ranked, as in the diagnosis) and the answer in a sentence.

    ``lost``: a step was taken on a non-finite loss, so that something is needed in any case.
    ``refused``: the step up to a call that raised and ended the script. ``run``: what is known
    where no step was kept. ``beyond``: steps that are not finite in fp32 either.
    """
    leading = next((finding for _, finding in demanding(findings)), None)
    if leading is None and lost:
        return (), Recommendation(
            RecommendationStatus.NONE_FOUND,
            "no cure is known: no check says why a loss is not finite",
        )
    if leading is None:
        return (), Recommendation(
            RecommendationStatus.NONE_NEEDED, "nothing that was examined demands a change"
        )
    if bench is not None:
        bench.faults = faults_of(findings)
        bench.of_rounding = any(codes_of(f) & OF_ROUNDING for _, f in demanding(findings))
    case = Case(tuple(findings), bench, updates, refused, run, beyond)
    tried = tuple(held_to_intended(case, tuple(prescriptions(case))))
    tried = tuple(with_rises(case, tried))
    found = tuple(map(with_forms, without_advice(tried, findings)))
    why = _beyond_precision(leading)
    if why:
        return without_twins(found, _by_an_edit(tuple(findings), leading, found, why))
    groups = tuple(tuple(map(with_forms, g)) for g in joint_cures(case, found))
    answer = _recommendation(tuple(findings), leading, found, bench)
    answer = _joint(case, groups, found, answer) or answer
    found += tuple(p for g in groups for p in g)
    if answer.status is _PRESCRIBED:
        beside = note(case, [found[i] for i in answer.prescriptions])
        answer = replace(answer, sentence=answer.sentence + beside)
    return without_twins(with_reach(found, answer, bench), answer)


def _beyond_precision(leading: Finding) -> str:
    """Why no format cures a finding, "" where one may."""
    if leading.name in _LOGIC:
        return "not a matter of precision: no format or loss scale changes it"
    if fails_anyway(leading):
        return "no format is a cure: the replay in a wider one is not finite either"
    return ""


def _by_an_edit(
    findings: tuple[Finding, ...], leading: Finding, found: tuple[Prescription, ...], why: str
) -> Recommendation:
    """The change of code for what no format cures: the guard, where one stood in the trial."""
    chosen = _code_changes(found, findings.index(leading))
    own = [found[i].remedy.title for i in chosen if found[i].remedy.title != leading.advice]
    sentence = " · ".join((*own, why))
    return Recommendation(RecommendationStatus.NOT_PRECISION, sentence, chosen)


def _joint(
    case: Case,
    groups: tuple[tuple[Prescription, ...], ...],
    found: tuple[Prescription, ...],
    answer: Recommendation,
) -> Recommendation | None:
    """Return the parts of one cure that were verified together, where they beat any single one.

    That is where nothing else was found, where they treat more, or where they spare another
    format.
    """
    chosen = [found[i] for i in answer.prescriptions if answer.status is _PRESCRIBED]
    treated = {i for p in chosen for i in p.treats}
    before, (leading, first) = len(found), next(iter(demanding(case.findings)))

    def last_of(parts: Sequence[Prescription]) -> tuple[int, Rank]:
        return max((_behind(p, first), rank(p)) for p in parts)

    for group in groups:
        place, before = before, before + len(group)
        verified = all(p.verification.verdict is Verdict.VERIFIED for p in group)
        treats = {i for p in group for i in p.treats}
        if len(group) < 2 or not verified or leading not in treats or not treated <= treats:
            continue
        if treats > treated or last_of(group) < last_of(chosen):
            titles = ", and ".join(p.remedy.title for p in group)
            return Recommendation(_PRESCRIBED, titles, tuple(range(place, place + len(group))))
    return None


def _recommendation(
    findings: tuple[Finding, ...],
    leading: Finding,
    found: tuple[Prescription, ...],
    bench: Bench | None,
) -> Recommendation:
    verified = [i for i, p in enumerate(found) if p.verification.verdict is Verdict.VERIFIED]
    place = findings.index(leading)
    verified = [i for i in verified if place in found[i].treats]
    if leading.fault is Fault.INITIALIZATION:
        verified = [i for i in verified if found[i].remedy.kind is RemedyKind.FIXUP_INIT]
        if not verified:
            return _unverified(leading, place, found)
    refused = verified and is_refusal(leading)
    of_use = codes_of(leading) & (OF_PRECISION | SCALER_USE)
    if leading.fault is Fault.MISUSE and not of_use and not refused:
        return _unverified(leading, place, found)
    if verified:
        best = min(verified, key=lambda i: (_behind(found[i], leading), rank(found[i])))
        return Recommendation(RecommendationStatus.PRESCRIBED, found[best].remedy.title, (best,))
    if bench is not None:
        tried = sum(p.verification.verdict is Verdict.REFUTED for p in found)
        if tried:
            change = _code_changes(found, place)
            sentence = f"none of {tried} cures that were tried meets the criteria"
            if bench.exhausted:
                left = f" (left untried: {', '.join(bench.untried)})" if bench.untried else ""
                sentence += f", and the time budget was spent before all were{left}"
            return Recommendation(RecommendationStatus.NONE_FOUND, sentence, change)
        if bench.exhausted:
            return _unverified(leading, place, found, ": the time budget was spent")
    return _unverified(leading, place, found)


def _unverified(
    leading: Finding, place: int, found: tuple[Prescription, ...], why: str = ""
) -> Recommendation:
    change = _code_changes(found, place)
    sentence = leading.advice or "no cure is known"
    return Recommendation(
        RecommendationStatus.NONE_FOUND, f"{sentence}; not verified by a replay{why}", change
    )


def _code_changes(found: tuple[Prescription, ...], place: int) -> tuple[int, ...]:
    """Return the position of the change of code for one finding: a guard before mere advice."""
    changes = [i for i, p in enumerate(found) if p.remedy.kind is RemedyKind.CODE_FIX]
    proved = [found[i].verification.verdict is Verdict.VERIFIED for i in changes]
    fit = sorted(zip(proved, changes, strict=True), key=lambda both: not both[0])
    return tuple(i for _, i in fit if place in found[i].treats)[:1]


def _behind(prescription: Prescription, leading: Finding) -> int:
    """Whatever the cost: a refused call and a scaler's use are put right by an edit.

    Values that go on growing need room everywhere, not in one place; fp32 is that too.
    """
    kind, value = prescription.remedy.kind, prescription.remedy.value
    if is_refusal(leading) or codes_of(leading) & SCALER_USE:
        return int(kind is not RemedyKind.CODE_FIX)
    narrow = kind is RemedyKind.FP32_KEEP or value == "fp32"
    return int(rises(leading) and narrow)
