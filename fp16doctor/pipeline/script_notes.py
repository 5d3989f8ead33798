"""Tells, beside a run, what its scripts show and the run neither refutes nor has found itself.

Must not know what a mistake is, nor which run leaves it standing (``diagnose``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from fp16doctor.diagnose.beside_run import SeenRun
from fp16doctor.diagnose.script_engine import lint_script
from fp16doctor.diagnose.script_rule import ScriptRule, all_script_rules
from fp16doctor.pipeline.own_lines import ScriptText, script_text
from fp16doctor.record.own_files import own_files
from fp16doctor.record.source_lines import SourceLines
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import TEXT_ROLE, OpSite, Phase, SourceLine
from fp16doctor.schema.prescription import (
    Prescription,
    Recommendation,
    RecommendationStatus,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)
from fp16doctor.schema.script_finding import ScriptFinding

Caution = Callable[[str, str], None]

_MOST_FILES = 100  # beside the script
_NO_STEP = -1  # it was there before the first
_OFF_TAPE = -1
_NOT_TRIED = "it needs an edit of the script, which was not tried"

Told = tuple[tuple[Finding, ...], tuple[Prescription, ...]]


def texts_beside(script: ScriptText, lines: SourceLines) -> tuple[ScriptText, ...]:
    """Return the script and the files beside it that ran; of a module those alone."""
    imported = (script_text(path, lines.shorten(path)) for path in own_files(lines)[:_MOST_FILES])
    named = {s.name: s for s in (*imported, script)}  # the script as it was at its start
    return tuple(text for text in named.values() if text.text)


def with_script_notes(
    run: SeenRun,
    prescriptions: tuple[Prescription, ...],
    scripts: Sequence[ScriptText],
    caution: Caution,
) -> Told:
    """Return the run's findings and prescriptions with what the scripts' text adds, at the end."""
    try:
        notes, changes = script_notes(scripts, run, caution)
    except Exception as error:  # noqa: BLE001 - an extra that must not cost the findings
        caution("script-not-read", f"the scripts' text: {type(error).__name__}: {error}")
        return run.findings, prescriptions
    return _most_severe_first((*run.findings, *notes), (*prescriptions, *changes))


def _most_severe_first(
    findings: tuple[Finding, ...], prescriptions: tuple[Prescription, ...]
) -> Told:
    """Move what the text proves in front of the run's notes; the rest keeps its order."""
    order = sorted(range(len(findings)), key=lambda i: list(Severity).index(findings[i].severity))
    if not any(f.severity is not Severity.NOTE and _is_of_text(f) for f in findings):
        return findings, prescriptions
    now = {old: new for new, old in enumerate(order)}
    moved = (replace(p, treats=tuple(now[i] for i in p.treats)) for p in prescriptions)
    return tuple(findings[i] for i in order), tuple(moved)


def _is_of_text(finding: Finding) -> bool:
    return finding.site is not None and finding.site.role == TEXT_ROLE


def script_notes(scripts: Sequence[ScriptText], run: SeenRun, caution: Caution) -> Told:
    """Return notes, one a rule with its further places as repeats, and their diffs as changes.

    Args:
        scripts: the user's own files; empty ones are left out.
        run: the finished run and its findings, behind which the notes are placed.
        caution: takes the slug and the text of what could not be read.
    """
    rules = {rule.code: rule for rule in all_script_rules()}
    said: dict[str, list[ScriptFinding]] = {}
    for script in scripts:
        found, unread = lint_script(script.text, script.name, rules.values())
        for missed in unread:
            caution("script-not-read", f"{missed.file}: {missed.reason}")
        for one in found:
            if _is_told(rules[one.code], one, run):
                said.setdefault(one.code, []).append(one)
    first = len(run.findings)
    return (
        tuple(_note(group, rules[code]) for code, group in said.items()),
        tuple(c for i, group in enumerate(said.values()) for c in _changes(group, first + i)),
    )


def _is_told(rule: ScriptRule, said: ScriptFinding, run: SeenRun) -> bool:
    if run.holds(rule.name, *rule.same_as) or run.is_blamed(said.file, said.line):
        return False
    return rule.stands(run) or run.raised_at(said.file, said.line)


def recommended(
    known: Recommendation, findings: Sequence[Finding], prescriptions: Sequence[Prescription]
) -> Recommendation:
    """Return the right form of what the text alone proves, where the run demands no change."""
    if known.status is not RecommendationStatus.NONE_NEEDED:
        return known
    for position, cure in enumerate(prescriptions):
        treated = [findings[i] for i in cure.treats if i < len(findings)]
        if any(f.severity is Severity.ERROR and _is_of_text(f) for f in treated):
            sentence = f"{cure.remedy.title}; not verified by a replay"
            return Recommendation(RecommendationStatus.NONE_FOUND, sentence, (position,))
    return known


def _note(group: Sequence[ScriptFinding], rule: ScriptRule) -> Finding:
    first = group[0]
    return Finding(
        code=first.code,
        name=first.name,
        severity=first.severity if rule.proven else Severity.NOTE,
        fault=Fault.MISUSE,
        what=first.what,
        cause=first.reason,
        site=_site(first),
        repeats=tuple(map(_site, group[1:])),
        advice=first.advice,
    )


def _site(said: ScriptFinding) -> OpSite:
    line = SourceLine(said.file, said.line, said.function, said.text)
    return OpSite(_NO_STEP, Phase.SCRIPT, "", _OFF_TAPE, role=TEXT_ROLE, source=line)


def _changes(group: Iterable[ScriptFinding], position: int) -> Iterable[Prescription]:
    for said in group:
        if said.fix:
            place = (f"line:{said.file}:{said.line}",)
            remedy = Remedy(RemedyKind.CODE_FIX, said.advice, change=said.fix, target=place)
            proof = Verification(Verdict.NOT_VERIFIED, reason=_NOT_TRIED)
            yield Prescription(remedy, (position,), proof)
