"""The four lines on top of every report: verdict, place, what to do, proof and what was not seen.

Must not know how they are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

from fp16doctor.report import step_words, wording
from fp16doctor.report.beside_cure import before_cure, loop_counts
from fp16doctor.report.confirmed import confirm_line, proof_words
from fp16doctor.report.consequence import beside, harm, without_a_finding
from fp16doctor.report.nearest import nearest_limit
from fp16doctor.report.pastes import pastes
from fp16doctor.report.proof import proof_line
from fp16doctor.report.run_story import (
    exception_story,
    first_nonfinite,
    has_nonfinite_loss,
    left_out,
    lost_step,
    no_steps,
    not_examined,
    outcome_words,
    top_finding,
    unknown_steps,
)
from fp16doctor.report.view_model import AnswerView
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Finding, OutcomeOfCheck, Severity
from fp16doctor.schema.location import TEXT_ROLE, OpSite, SourceLine
from fp16doctor.schema.prescription import (
    TOGETHER,
    Prescription,
    RecommendationStatus,
    RemedyKind,
    Verdict,
)
from fp16doctor.schema.recording import OutcomeKind

_FORMAT_ADVICE = ("keep `", "run `", "train in ")  # how a format is advised


def answer(diagnosis: Diagnosis) -> AnswerView:
    """Word the answer for whatever happened: a fault, none, none that could be seen."""
    mark = _mark(diagnosis)
    verdict, details = _said(diagnosis)
    do = _do(diagnosis, mark)
    return AnswerView(
        mark=mark,
        verdict=verdict,
        details="; ".join(p for p in details if p),
        line=_own_line(diagnosis),
        place=_place(diagnosis),
        do=do,
        proof=proof_line(diagnosis),
        confirm=confirm_line(diagnosis),
        pastes=pastes(diagnosis, do),
    )


def _mark(diagnosis: Diagnosis) -> str:
    top = top_finding(diagnosis)
    if top:
        return "unknown" if top.severity is Severity.NOTE else top.severity.value
    unexplained = has_nonfinite_loss(diagnosis) or _ended_badly(diagnosis)
    return "unknown" if unexplained or not diagnosis.steps else "clear"


def _ended_badly(diagnosis: Diagnosis) -> bool:
    return diagnosis.run.outcome.kind in (OutcomeKind.RAISED, OutcomeKind.EXITED)


def _said(diagnosis: Diagnosis) -> tuple[str, list[str]]:
    """The verdict, and what stands behind it in smaller letters."""
    top, ended = top_finding(diagnosis), exception_story(diagnosis)
    if top:
        more = [*beside(diagnosis, top), ended, _others(diagnosis, top)]
        return _headline(diagnosis, top), more
    verdict, more = _without_a_finding(diagnosis)
    if _ended_badly(diagnosis):  # nothing else was found: the exception is the news
        return outcome_words(diagnosis.run.outcome), [verdict, *more]
    return verdict, [*more, ended]


def _headline(diagnosis: Diagnosis, top: Finding) -> str:
    """What became of the training, and why."""
    if top.severity is Severity.WARNING and diagnosis.steps:
        seen = wording.plural(len(diagnosis.steps), "step")
        return f"no error in {seen}, one warning: {top.what}"
    became = wording.listed(harm(diagnosis, top))
    return f"{became}: {top.what}" if became else top.what


def _others(diagnosis: Diagnosis, top: Finding) -> str:
    more = sum(f.severity is not Severity.NOTE and f is not top for f in diagnosis.findings)
    return f"{wording.plural(more, 'other finding')} below" if more > 0 else ""


def _without_a_finding(diagnosis: Diagnosis) -> tuple[str, list[str]]:
    steps, more = diagnosis.steps, without_a_finding(diagnosis)
    if not steps:
        ran = f"ran {wording.seconds(diagnosis.run.duration_s)}"
        why = no_steps(diagnosis)
        return f"{why.message} in `{diagnosis.run.script}` ({ran})  [{why.slug}]", []
    if has_nonfinite_loss(diagnosis):
        return f"{step_words.loss_words(steps)}, and no check names a cause", more
    seen, more = _unharmed(diagnosis), [*more, step_words.course(steps)]
    return "; ".join(p for p in (seen, _unsure(diagnosis)) if p), more


def _unharmed(diagnosis: Diagnosis) -> str:
    """What is said of a run whose losses, as far as they are known, are finite."""
    seen, lost = wording.plural(len(diagnosis.steps), "step"), lost_step(diagnosis)
    if lost is not None and lost.site is not None:
        return f"one of {seen} was lost, and the scaler skipped it: {lost.what}"
    if (note := left_out(diagnosis)) is not None and note.site is not None:
        return (
            f"no harm found in {seen}, but the script left out a loss that was not finite "
            f"({wording.step_name(note.site.step)}): {note.what}"
        )
    if unknown := unknown_steps(diagnosis):
        return (
            f"no check names a fault in {seen}, but {wording.step_name(unknown[0].step)} made inf "
            "or NaN, and its loss is not known"
        )
    return f"nothing wrong found in {seen}"


def _unsure(diagnosis: Diagnosis) -> str:
    failed = sum(c.outcome is OutcomeOfCheck.FAILED for c in diagnosis.checks)
    if failed:
        return f"{wording.plural(failed, 'check')} failed and answered nothing"
    return "" if diagnosis.checks else "no check was run"


def _source(diagnosis: Diagnosis) -> SourceLine | None:
    """The line of the script that the answer is about."""
    top, site = top_finding(diagnosis), _site(diagnosis)
    if top is None and diagnosis.run.outcome.source:
        return diagnosis.run.outcome.source
    return wording.own_line(site) if site else None


def _site(diagnosis: Diagnosis) -> OpSite | None:
    """The op that the answer is about."""
    top = top_finding(diagnosis)
    if top:
        return top.site
    lost = lost_step(diagnosis)
    if lost is not None and lost.site is not None:
        return lost.site
    return first_nonfinite(diagnosis) if has_nonfinite_loss(diagnosis) else None


def _own_line(diagnosis: Diagnosis) -> str:
    source = _source(diagnosis)
    if source is None:
        return ""
    return f"{wording.location(source)}   {source.text or ''}".rstrip()


def _place(diagnosis: Diagnosis) -> str:
    """What stands behind the line, or in its place where there is none."""
    top, site = top_finding(diagnosis), _site(diagnosis)
    if top is None and diagnosis.run.outcome.source:
        ended = diagnosis.run.outcome.kind is OutcomeKind.EXITED
        return "where the script ended" if ended else "where the exception left the script"
    if site is not None:
        return wording.joined(_op(diagnosis, site), _reason(top) if top else "")
    return "the run as a whole, no single op" if top else _nothing_to_place(diagnosis)


def _op(diagnosis: Diagnosis, site: OpSite) -> str:
    """``step 0, forward · aten.bmm``; with the module where no line of the script is known."""
    if wording.own_line(site) is None:
        return wording.where(site)
    if site.role == TEXT_ROLE:
        return wording.IN_THE_TEXT
    inside = site.source if site.caller else None
    library = f"inside {wording.location(inside)}" if inside else ""
    step = wording.step_name(site.step) + loop_counts(diagnosis, site.step)
    when = f"{step}, {site.phase.value}"
    return wording.joined(when, wording.op_name(site.op), library)


def _nothing_to_place(diagnosis: Diagnosis) -> str:
    if not_examined(diagnosis):
        return wording.joined("none to name", wording.UNEXAMINED)
    sound = not has_nonfinite_loss(diagnosis) and not _ended_badly(diagnosis)
    return wording.joined("none to name", nearest_limit(diagnosis) if sound else "")


def _reason(finding: Finding) -> str:
    """Where it comes from, unless that is the line that is named already."""
    cause, site = finding.cause_site, finding.site
    if cause is None or (site is not None and _line(cause) == _line(site) is not None):
        return ""
    return f"the reason lies upstream: {wording.brief(cause)}"


def _line(site: OpSite) -> tuple[str, int] | None:
    source = wording.own_line(site)
    return (source.file, source.line) if source else None


def _do(diagnosis: Diagnosis, mark: str) -> str:
    top, chosen = top_finding(diagnosis), diagnosis.recommendation
    if chosen.status is RecommendationStatus.PRESCRIBED:
        said = f"{chosen.sentence} ({proof_words(diagnosis, _proved(diagnosis))})"
        return before_cure(said) + said
    if top and (title := _own_title(diagnosis)):
        proved = proof_words(diagnosis, _proved(diagnosis))
        return chosen.sentence.replace(title, f"{title} ({proved})", 1)
    if top:
        open_advice = _not_refuted(top.advice, diagnosis)
        advice = f"{open_advice} (not verified)" if open_advice else ""
        if chosen.status is RecommendationStatus.NONE_NEEDED:
            return advice or "start at the place above: no cure of it was tried"
        if advice and chosen.sentence.startswith(top.advice):
            return advice
        said = chosen.sentence
        return wording.joined(advice, said) or "no cure is known for this finding"
    if not diagnosis.steps:
        return _let_it_train(diagnosis)
    if mark == "unknown":
        return _do_without_a_cause(diagnosis)
    return chosen.sentence or "nothing to change"


def _own_title(diagnosis: Diagnosis) -> str:
    """The title of the one change of code that the sentence begins with, "" where it has none."""
    chosen = diagnosis.recommendation
    titles = [diagnosis.prescriptions[i].remedy.title for i in chosen.prescriptions]
    beyond = chosen.status is RecommendationStatus.NOT_PRECISION
    return next((t for t in titles if beyond and chosen.sentence.startswith(t)), "")


def _not_refuted(advice: str, diagnosis: Diagnosis) -> str:
    """What an advice still leaves open where other formats were tried and are no cure."""
    formats = (RemedyKind.DTYPE, RemedyKind.FP32_KEEP)
    tried = (p for p in diagnosis.prescriptions if p.remedy.kind in formats)
    if not any(p.verification.verdict is Verdict.REFUTED for p in tried):
        return advice
    for alternative in _FORMAT_ADVICE:
        advice = advice.split(f", or {alternative}")[0]
    return "" if advice.startswith(_FORMAT_ADVICE) else advice


def _let_it_train(diagnosis: Diagnosis) -> str:
    if no_steps(diagnosis).slug == "other-thread":
        return (
            "train in the main thread, or wrap the loop in `fp16doctor.profile(model)` inside its "
            "own: training itself was not examined"
        )
    if no_steps(diagnosis).slug == "other-processes":
        return (
            "start the processes by `torchrun --nproc-per-node N -m fp16doctor scan`, or call the "
            "function that trains in the script itself: training itself was not examined"
        )
    if no_steps(diagnosis).slug == "recorder-stopped":
        return "the script went on without being watched: no step of it was examined"
    return "let the script reach `optimizer.step()`: training itself was not examined"


def _do_without_a_cause(diagnosis: Diagnosis) -> str:
    if has_nonfinite_loss(diagnosis):
        return "no cure is known: the proof line says what was not seen"
    seen = wording.plural(len(diagnosis.steps), "step")
    found = f"nothing in the {seen} seen points at number formats"
    return f"start from the script's own message: {found}"


def _proved(diagnosis: Diagnosis) -> str:
    cures = [diagnosis.prescriptions[i] for i in diagnosis.recommendation.prescriptions]
    if not cures or any(c.verification.verdict is not Verdict.VERIFIED for c in cures):
        return "not verified"
    steps = sorted({s for c in cures for s in c.verification.steps})
    joint = any(c.verification.reason.startswith(TOGETHER) for c in cures)
    how = "verified together" if joint else "verified"
    bounds = dict.fromkeys(b for c in cures for b in _bounds(c, cures))
    if bounds:  # the proof holds so far and no further
        mark = " " if next(iter(bounds)).startswith(wording.REACH) else ": "
        return f"{how}{mark}{'; '.join(bounds)}"
    return f"{how} by replay of {wording.steps_named(steps)}" if steps else f"{how} by replay"


def _bounds(cure: Prescription, cures: Sequence[Prescription]) -> list[str]:
    """How far its proof holds; the cures that it was tried with are named already."""
    others = " and ".join(c.remedy.title for c in cures if c is not cure)
    rest = cure.verification.reason.removeprefix(f"{TOGETHER}{others}")
    return [bound for bound in rest.split("; ") if bound]
