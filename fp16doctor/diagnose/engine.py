"""Runs every rule on what was seen; a rule that fails is reported and stops nothing.

Must not know any single rule.
"""

from __future__ import annotations

from collections.abc import Iterable

from fp16doctor.diagnose.folding import fold_collapse, fold_explained, merge_repeats, rank
from fp16doctor.diagnose.loop_counts import with_loop_counts
from fp16doctor.diagnose.rule import Observations, Rule, all_rules
from fp16doctor.schema.finding import CheckOutcome, Finding, OutcomeOfCheck


def diagnose(
    seen: Observations, rules: Iterable[Rule] | None = None
) -> tuple[tuple[Finding, ...], tuple[CheckOutcome, ...]]:
    """Findings, most important first with one finding per cause, and what every rule said.

    Args:
        seen: recording and examined steps; ``final`` False while the script still runs.
        rules: rules to run; all of them where left out.
    """
    found: list[Finding] = []
    outcomes: list[CheckOutcome] = []
    asked = tuple(all_rules() if rules is None else rules)
    for rule in asked:
        findings, outcome = _run(rule, seen)
        found.extend(findings)
        outcomes.append(outcome)
    explains = {rule.code: rule.explains for rule in asked if rule.explains}
    folded = fold_explained(rank(merge_repeats(found)), explains)
    folded = fold_collapse(seen, rank(folded))
    return with_loop_counts(seen, rank(folded)), tuple(outcomes)


def _run(rule: Rule, seen: Observations) -> tuple[tuple[Finding, ...], CheckOutcome]:
    missing = rule.missing(seen)
    if missing:
        return (), _outcome(rule, OutcomeOfCheck.NOT_APPLICABLE, missing)
    try:
        findings = tuple(rule.check(seen))
    except Exception as error:  # noqa: BLE001 - the isolation point: a rule never stops a report
        return (), _outcome(rule, OutcomeOfCheck.FAILED, f"{type(error).__name__}: {error}")
    kind = OutcomeOfCheck.FOUND if findings else OutcomeOfCheck.CLEAR
    return findings, _outcome(rule, kind, "")


def _outcome(rule: Rule, kind: OutcomeOfCheck, detail: str) -> CheckOutcome:
    return CheckOutcome(rule.code, rule.name, kind, detail)
