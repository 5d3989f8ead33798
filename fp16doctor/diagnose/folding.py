"""Several findings of one cause become one finding; the rest are ordered by importance.

Must not know how findings are found.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping

from fp16doctor.diagnose.rule import Observations
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import TEXT_ROLE, OpSite, Phase

_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
_COLLAPSE = "FD401"
_BEFORE_BACKWARD = frozenset({Phase.FORWARD, Phase.LOSS})
_SKIPPED_SINKS = frozenset({"loss", "gradients"})


def rank(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Most severe first, then the earliest step, then the earliest op: causes come first.

    Updates that 16 bits do not take are there from the first step on; they make no inf and no NaN,
    and come behind what does.
    """
    return tuple(sorted(findings, key=_rank_key))


def _rank_key(finding: Finding) -> tuple[int, bool, int, int, str]:
    step, index = _when(finding)
    slow = finding.fault is Fault.LOST_UPDATE
    return _ORDER[finding.severity], slow, step, index, finding.code


def _when(finding: Finding) -> tuple[int, int]:
    if finding.site is None:
        return sys.maxsize, sys.maxsize
    # What has no position on the tape, the line that raised, came after everything that has one.
    index = finding.site.index if finding.site.index >= 0 else sys.maxsize
    return finding.site.step, index


def merge_repeats(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The same rule, op and source line over several steps and modules: one finding.

    Kept is the first of the most severe ones, so that its sentences tell of what mattered; the
    sites of all others become its repeats.
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in rank(findings):
        groups.setdefault(_identity(finding), []).append(finding)
    return tuple(_merged(group) for group in groups.values())


def _identity(finding: Finding) -> tuple[object, ...]:
    site = finding.site
    if site is None or finding.fault is Fault.LOSS_SCALE:
        # Whichever gradient passed the limit first: the loss scale is the one cause.
        return finding.code, finding.fault
    if finding.fault is Fault.MISUSE and finding.severity is Severity.NOTE and _was_run(site):
        return finding.code, finding.fault  # one habit of the script, wherever it shows
    place = (site.source.file, site.source.line) if site.source else site.module_path
    return finding.code, site.op, place


def _was_run(site: OpSite) -> bool:
    """Whether it was seen in the run: what only the text of the script shows has its own edit."""
    return site.role != TEXT_ROLE


def _merged(group: list[Finding]) -> Finding:
    first, others = group[0], group[1:]
    sites = {site for other in others for site in (other.site, *other.repeats) if site is not None}
    # A set, because a trace may have counted the same birth under its first one.
    more = sorted(sites - set(first.repeats) - {first.site}, key=_site_key)
    return dataclasses.replace(
        first,
        repeats=(*first.repeats, *more),
        subsumes=tuple(dict.fromkeys(code for f in group for code in f.subsumes)),
    )


def _site_key(site: OpSite) -> tuple[int, int, str]:
    return site.step, site.index, site.module_path or ""


def fold_explained(
    findings: tuple[Finding, ...], explains: Mapping[str, tuple[str, ...]]
) -> tuple[Finding, ...]:
    """A misuse and what its rule declares it to be the cause of: one finding, the misuse.

    It takes the severity of its gravest consequence: alone, a missing loss scale harms nothing.
    """
    kept = list(findings)
    for misuse in findings:
        patterns = explains.get(misuse.code, ())
        heirs = [f for f in kept if f is not misuse and _follows(misuse, f, patterns)]
        if not heirs or misuse not in kept:
            continue
        kept[kept.index(misuse)] = _with_heirs(misuse, heirs)
        kept = [f for f in kept if f not in heirs]
    return tuple(kept)


def _follows(misuse: Finding, later: Finding, patterns: tuple[str, ...]) -> bool:
    """Whether ``later`` is of a declared kind and did not happen before the misuse."""
    if not later.code.startswith(patterns or ("-",)) or misuse.site is None:
        return False
    if later.site is None:
        return True
    if misuse.fault is Fault.INITIALIZATION:  # it was there before the first op
        return misuse.severity is Severity.ERROR and _when(later) >= _when(misuse)
    # What forward and loss do in the step of the misuse, they did before it.
    same_step = later.site.step == misuse.site.step and later.site.phase not in _BEFORE_BACKWARD
    return same_step or later.site.step > misuse.site.step


def _with_heirs(misuse: Finding, heirs: list[Finding]) -> Finding:
    first = heirs[0]
    reaches = (name for f in (misuse, *heirs) for name in f.reaches)
    codes = (*misuse.subsumes, *(code for f in heirs for code in (f.code, *f.subsumes)))
    return dataclasses.replace(
        misuse,
        severity=min((f.severity for f in (misuse, *heirs)), key=_ORDER.__getitem__),
        cause=f"{misuse.cause} As a consequence {first.what}.",
        evidence=(*misuse.evidence, *first.evidence),
        consequences=misuse.consequences + sum(1 + f.consequences for f in heirs),
        reaches=tuple(dict.fromkeys(reaches)),
        subsumes=tuple(dict.fromkeys(codes)),
    )


def fold_collapse(seen: Observations, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """A collapsing loss scale is a consequence of the error that made the scaler skip steps."""
    collapse = next((f for f in findings if f.code == _COLLAPSE), None)
    reason = next((f for f in findings if _explains_skips(seen, f)), None)
    if collapse is None or reason is None:
        return findings
    folded = dataclasses.replace(
        reason,
        cause=f"{reason.cause} As a consequence {collapse.what}.",
        subsumes=(*reason.subsumes, collapse.code),
        evidence=(*reason.evidence, *collapse.evidence),
    )
    rest = (f for f in findings if f is not collapse)
    return tuple(folded if f is reason else f for f in rest)


def _explains_skips(seen: Observations, finding: Finding) -> bool:
    if finding.severity is not Severity.ERROR or finding.code == _COLLAPSE or finding.site is None:
        return False
    skipped = {s.step for s in seen.recording.steps if s.skipped}
    steps = {site.step for site in (finding.site, *finding.repeats)}
    return bool(steps & skipped) and bool(_SKIPPED_SINKS & set(finding.reaches))
