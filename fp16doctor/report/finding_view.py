"""Words one finding and its cures: seven parts, every number formatted.

Must not know the rest of a report.
"""

from __future__ import annotations

from fp16doctor.report import wording
from fp16doctor.report.chain_view import chain_boxes
from fp16doctor.report.folded import folded_advice
from fp16doctor.report.view_model import CodeLine, FindingView, FormView, RemedyView
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Evidence, Finding, Severity
from fp16doctor.schema.location import OpSite, SourceContext, SourceLine
from fp16doctor.schema.prescription import Prescription, Remedy, Verdict

_VERDICTS = {
    Verdict.VERIFIED: "verified",
    Verdict.REFUTED: "refuted",
    Verdict.NOT_VERIFIED: "not verified",
}
_ORDER = list(_VERDICTS)  # cures that helped first
_KINDS = {
    "dtype": "number format",
    "loss_scale": "loss scale",
    "fp32_keep": "keep-list",
    "storage": "storage format",
    "fixup_init": "initialisation",
    "code_fix": "change of the script",
}
_PLACES_SHOWN = 5
_NOT_TRIED = "not verified: no cure of this finding was tried by replay"


def finding_view(diagnosis: Diagnosis, position: int) -> FindingView:
    """Word the finding at ``position`` of the diagnosis."""
    finding = diagnosis.findings[position]
    remedies = tuple(
        remedy_view(diagnosis, i, told=_is_told(diagnosis, i, position))
        for i in ranked(diagnosis)
        if position in diagnosis.prescriptions[i].treats
    )
    return FindingView(
        severity=finding.severity.value,
        code=finding.code,
        name=finding.name,
        what=finding.what,
        where=_where(diagnosis, finding),
        lines=_lines(diagnosis, finding),
        repeats=_repeats(finding.site, finding.repeats),
        evidence=tuple(map(evidence_words, finding.evidence)),
        cause=finding.cause,
        chain=_chain(finding.chain),
        boxes=chain_boxes(diagnosis, finding, _measured),
        consequences=_consequences(finding),
        folded=wording.listed(finding.subsumes),
        advice=finding.advice,
        remedies=remedies,
        others=_others(remedies),
        unproved=_NOT_TRIED if finding.advice and not remedies else "",
        explain=f"fp16doctor explain {finding.code}",
    )


def _others(remedies: tuple[RemedyView, ...]) -> str:
    """``3 other cures under Prescriptions: 2 verified, 1 refuted``."""
    rest = [r.verdict for r in remedies if not r.recommended]
    if not rest:
        return "code and proof under Prescriptions" if remedies else ""
    other = "other cure" if len(rest) < len(remedies) else "cure"
    words = [f"{rest.count(v)} {v}" for v in _VERDICTS.values() if v in rest]
    return f"{wording.plural(len(rest), other)} under Prescriptions: {', '.join(words)}"


def ranked(diagnosis: Diagnosis) -> list[int]:
    """Positions of the prescriptions: what is recommended first, then those that helped.

    Advice that is told beside its tried form is left out.
    """
    told = folded_advice(diagnosis)
    places = (i for i in range(len(diagnosis.prescriptions)) if i not in told)
    return sorted(places, key=lambda i: _rank(diagnosis, i))


def remedy_view(diagnosis: Diagnosis, position: int, *, told: bool = False) -> RemedyView:
    """Word the prescription at ``position`` of the diagnosis."""
    cure = diagnosis.prescriptions[position]
    return RemedyView(
        title=cure.remedy.title,
        change=cure.remedy.change,
        notes=_notes(cure.remedy),
        verdict=_VERDICTS[cure.verification.verdict],
        proof=_proof(cure),
        basis=wording.joined(_replayed(cure), cure.verification.reason),
        treats=_treats(diagnosis, cure),
        comparison=_comparison(cure),
        recommended=position in diagnosis.recommendation.prescriptions,
        advised=_advised(diagnosis, position),
        number=ranked(diagnosis).index(position) + 1,
        standing=_standing(diagnosis, position),
        told=told,
        forms=tuple(FormView(n, text) for n, text in cure.remedy.forms.items()),
        reason=cure.verification.reason,
    )


def _standing(diagnosis: Diagnosis, position: int) -> str:
    if position not in diagnosis.recommendation.prescriptions:
        return ""
    verdict = diagnosis.prescriptions[position].verification.verdict
    return "recommended" if verdict is Verdict.VERIFIED else "advised"


def _advised(diagnosis: Diagnosis, position: int) -> tuple[FormView, ...]:
    under = (i for i, cure in folded_advice(diagnosis).items() if cure == position)
    remedies = (diagnosis.prescriptions[i].remedy for i in under)
    return tuple(FormView(r.title, r.change) for r in remedies)


def _is_told(diagnosis: Diagnosis, cure: int, position: int) -> bool:
    """Whether an earlier finding that is shown in full has it: notes are shown in short."""
    earlier = (f for f in diagnosis.prescriptions[cure].treats if f < position)
    return any(diagnosis.findings[f].severity is not Severity.NOTE for f in earlier)


def _rank(diagnosis: Diagnosis, position: int) -> tuple[bool, int, int]:
    verdict = diagnosis.prescriptions[position].verification.verdict
    chosen = position in diagnosis.recommendation.prescriptions
    return not chosen, _ORDER.index(verdict), position


def _where(diagnosis: Diagnosis, finding: Finding) -> str:
    if finding.site is None:
        return "the run as a whole, no single op"
    element = finding.site.element
    shown = any(e.worst_index == element for e in finding.evidence)
    at = f"element {wording.index(element)}" if element is not None and not shown else ""
    if finding.site.sample is not None:
        at = wording.joined(at, f"sample {finding.site.sample} of the batch")
    return wording.joined(wording.where(finding.site, ranks=diagnosis.run.world_size), at)


def _lines(diagnosis: Diagnosis, finding: Finding) -> tuple[CodeLine, ...]:
    known = {(c.file, c.line): c for c in diagnosis.context}

    def code(relation: str, line: SourceLine) -> CodeLine:
        around = _numbered(known.get((line.file, line.line)))
        return CodeLine(relation, wording.location(line), line.text or "", around)

    lines = []
    for site, relation in ((finding.site, ""), (finding.cause_site, "reason")):
        if site and site.source:
            lines.append(code(relation, site.source))
        if site and site.caller:
            lines.append(code("called from", site.caller))
    return tuple(lines)


def _numbered(context: SourceContext | None) -> tuple[tuple[str, str, bool], ...]:
    if context is None:
        return ()
    width = len(str(context.first + len(context.lines)))
    numbered = enumerate(context.lines, context.first)
    return tuple((f"{n:>{width}}", text, n == context.line) for n, text in numbered)


def _repeats(site: OpSite | None, sites: tuple[OpSite, ...]) -> str:
    """Each other place once, and the other steps that show it."""
    if not sites:
        return ""
    there = {name for name in (_place(site),) if name}
    others = [p for p in dict.fromkeys(map(_place, sites)) if p not in there]
    left = len(others) - _PLACES_SHOWN
    more = [f"and {wording.count(left)} more (in the JSON)"] if left > 0 else []
    named = "; ".join(others[:_PLACES_SHOWN] + more)
    also = f"also at {wording.plural(len(others), 'other place')}: {named}" if others else ""
    again = sorted({s.step for s in sites if site is None or s.step != site.step})
    in_steps = f"also in {wording.steps_named(again)}" if again else ""
    return wording.joined(also, in_steps)


def _place(site: OpSite | None) -> str:
    return "" if site is None else wording.joined(wording.module_name(site), wording.brief(site))


def _chain(sites: tuple[OpSite, ...]) -> str:
    links = [f"{wording.brief(site)} ({site.phase.value})" for site in sites]
    distinct = list(dict.fromkeys(links))  # an op in a loop reads the same each time
    return " → ".join(distinct) if len(distinct) > 1 else ""


def _consequences(finding: Finding) -> str:
    if "inherit" in finding.cause:
        return ""  # the rule's own sentence says it already
    inherit = "inherits it" if finding.consequences == 1 else "inherit it"
    ops = f"{wording.plural(finding.consequences, 'later op')} {inherit}"
    reaches = f"it reaches the {wording.listed(finding.reaches)}" if finding.reaches else ""
    return "; ".join(p for p in (ops if finding.consequences else "", reaches) if p)


def evidence_words(evidence: Evidence) -> str:
    """``amax 1.84e5 at [3, 17, 902], fp16 maximum 65504 · replayed in fp32``."""
    return wording.joined(_measured(evidence), _source(evidence.source))


def _measured(evidence: Evidence) -> str:
    share = ""
    if evidence.count is not None:
        total, count = evidence.total, evidence.count
        share = wording.count(count) if total is None else wording.of_total(count, total)
    is_the_count = evidence.count is not None and evidence.measured == evidence.count
    words = f"{evidence.quantity} {share if is_the_count else _value_of(evidence)}"
    if evidence.worst_index is not None:
        words += f" at {wording.index(evidence.worst_index)}"
    words += _against(evidence)
    return words if is_the_count or not share else f"{words}, {share} elements"


def _value_of(evidence: Evidence) -> str:
    if evidence.quantity == "headroom":
        return wording.bits(evidence.measured)
    return wording.number(evidence.measured)


def _against(evidence: Evidence) -> str:
    name = evidence.limit_name or "limit"
    if evidence.limit is None:
        return f" in {evidence.format}" if evidence.format else ""
    if name.startswith(wording.REPLAYED):
        return f", {name.removeprefix(wording.REPLAYED)} replay {wording.number(evidence.limit)}"
    words = f"{wording.limit_name(name)} {wording.limit(evidence.limit)}"
    return f", {evidence.format} {words}" if evidence.format else f", {words}"


def _source(source: str) -> str:
    policy = source.removeprefix(wording.REPLAYED)
    return source if policy == source else f"replayed in {policy}"


def _notes(remedy: Remedy) -> tuple[str, ...]:
    target = f"target: {', '.join(remedy.target)}" if remedy.target else ""
    notes = (_KINDS[remedy.kind.value], target, _value(remedy), _cost(remedy.cost))
    return tuple(n for n in notes if n)


def _value(remedy: Remedy) -> str:
    value = remedy.value
    if isinstance(value, dict):
        return ", ".join(f"{k} {_one_value(v)}" for k, v in value.items())
    return "" if value is None else _one_value(value)


def _one_value(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return wording.number(float(value))
    return str(value)


def _cost(cost: dict[str, float]) -> str:
    words = {"flops_share": "of the FLOPs", "bytes_share": "of the bytes moved"}
    parts = [f"{wording.share(v)} {words.get(k, k)}" for k, v in cost.items()]
    return f"cost: {', '.join(parts)}" if parts else ""


def _treats(diagnosis: Diagnosis, cure: Prescription) -> str:
    named = [diagnosis.findings[i] for i in cure.treats if 0 <= i < len(diagnosis.findings)]
    return wording.listed([f"{f.code} {f.name}" for f in named])


def _comparison(cure: Prescription) -> tuple[tuple[str, str, str], ...]:
    before, after = cure.verification.before, cure.verification.after
    keys = [*before, *(k for k in after if k not in before)]
    return tuple((_quantity(k), _cell(k, before), _cell(k, after)) for k in keys)


def _quantity(key: str) -> str:
    return key.replace("non_finite", "non-finite").replace("_", " ")


def _cell(key: str, values: dict[str, float]) -> str:
    value = values.get(key)
    return wording.loss(value) if "loss" in key.split() else wording.rounded(value)


def _proof(cure: Prescription) -> str:
    changes = [f"{name} {old} → {new}" for name, old, new in _comparison(cure)]
    lead = ": ".join(p for p in (_replayed(cure), ", ".join(changes)) if p)
    return wording.joined(lead, cure.verification.reason)


def _replayed(cure: Prescription) -> str:
    steps, reason = cure.verification.steps, cure.verification.reason
    if reason.startswith(wording.REACH):
        return ""  # the reason names the steps
    return f"replay of {wording.steps_named(steps)}" if steps else ""
