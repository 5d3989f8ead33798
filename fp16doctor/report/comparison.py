"""Two diagnoses of one script side by side: what appeared, what went, what moved.

Must not know how either was made, or what a command does with the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite, log2

from fp16doctor.report import wording
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.recording import StepInfo

MOVED = 1.0  # binades from which a range counts as moved
_MOST_MOVED = 20

_Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """The largest magnitude of one module and role, in both runs."""

    place: str  # blocks.2.ffn.wo output
    before: float
    after: float

    @property
    def binades(self) -> float:
        """log2(after / before)."""
        return log2(self.after) - log2(self.before)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs from the first diagnosis to the second."""

    appeared: tuple[Finding, ...]
    went: tuple[Finding, ...]
    stayed: tuple[Finding, ...]  # as the second has them
    moved: tuple[Move, ...]  # farthest first
    run: tuple[tuple[str, str, str], ...]  # fact, before, after: only where they differ


def compare(before: Diagnosis, after: Diagnosis) -> Comparison:
    """Match findings by rule, module, op and function, and ranges by module and role.

    Line numbers do not count: an edit above moves them.
    """
    appeared, stayed = _split(after.findings, before.findings)
    went, _ = _split(before.findings, after.findings)
    return Comparison(appeared, went, stayed, tuple(_moves(before, after)), _facts(before, after))


def _split(
    mine: Iterable[Finding], other: Iterable[Finding]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return (findings that the other lacks, findings that both have)."""
    there = Counter(map(_key, other))
    alone: list[Finding] = []
    shared: list[Finding] = []
    for finding in mine:
        key = _key(finding)
        (shared if there[key] > 0 else alone).append(finding)
        there[key] -= 1
    return tuple(alone), tuple(shared)


def _key(finding: Finding) -> _Key:
    site = finding.site
    if site is None:
        return (finding.code,)
    line = site.source or site.caller
    where = (line.file, line.function) if line is not None else ("", "")
    return (finding.code, site.phase.value, site.op, site.module_path or "", *where)


def _moves(before: Diagnosis, after: Diagnosis) -> Iterator[Move]:
    old = {(r.module_path, r.role): r.amax for r in before.ranges}
    moves = []
    for now in after.ranges:
        was = old.get((now.module_path, now.role), 0.0)
        if was > 0 and now.amax > 0 and isfinite(was) and isfinite(now.amax):
            place = f"{now.module_path or 'root module'} {now.role}"
            moves.append(Move(place, was, now.amax))
    far = [m for m in moves if abs(m.binades) >= MOVED]
    yield from sorted(far, key=lambda m: -abs(m.binades))


def _facts(before: Diagnosis, after: Diagnosis) -> tuple[tuple[str, str, str], ...]:
    pairs = zip(_told(before), _told(after), strict=True)
    return tuple((name, a, b) for (name, a), (_, b) in pairs if a != b)


def _told(diagnosis: Diagnosis) -> tuple[tuple[str, str], ...]:
    steps = diagnosis.steps
    last = steps[-1] if steps else None
    return (
        ("steps", str(len(steps))),
        ("skipped steps", str(sum(s.skipped for s in steps))),
        ("last loss", wording.loss(last.loss) if last else wording.NOTHING),
        ("last loss scale", wording.number(_scale_after(last)) if last else wording.NOTHING),
        ("recommendation", diagnosis.recommendation.sentence),
    )


def _scale_after(step: StepInfo) -> float | None:
    """The scale that the step leaves behind, as the report tells it."""
    return step.loss_scale if step.next_loss_scale is None else step.next_loss_scale


def render_comparison(found: Comparison, *, verbose: bool = False) -> str:
    """Return the comparison as text, a line a fact."""
    lines = [*_findings("appeared", found.appeared), *_findings("went", found.went)]
    if verbose:
        lines += _findings("stayed", found.stayed)
    lines += [f"changed   {name}: {a} → {b}" for name, a, b in found.run]
    shown = found.moved if verbose else found.moved[:_MOST_MOVED]
    lines += [
        f"moved     `{m.place}`: amax {wording.number(m.before)} → {wording.number(m.after)} "
        f"({_signed(m.binades)} binades)"
        for m in shown
    ]
    left = len(found.moved) - len(shown)
    if left:
        lines.append(f"… and {wording.plural(left, 'more range')} that moved (shown with -v)")
    lines.append(_total(found))
    return "\n".join(map(wording.visible, lines)) + "\n"


def _findings(word: str, findings: Iterable[Finding]) -> list[str]:
    return [
        f"{word:9} {f.severity.value} {f.code} {f.name}: {f.what}"
        + (f"  ({wording.brief(f.site)})" if f.site is not None and f.site.op else "")
        for f in findings
    ]


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '−'}{abs(value):.1f}"


def _total(found: Comparison) -> str:
    return wording.joined(
        f"{wording.plural(len(found.appeared), 'finding')} appeared",
        f"{wording.count(len(found.went))} went",
        f"{wording.count(len(found.stayed))} stayed",
        f"{wording.plural(len(found.moved), 'range')} moved by {MOVED:g} binade or more",
    )
