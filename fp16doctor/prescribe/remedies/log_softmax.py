"""Tries log_softmax where a probability that its format rounds to 0 goes into a logarithm.

Must not know how a step is edited.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.prescribe.bench import BUDGET_SPENT, Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.edit import diff, with_call_renamed, without_call
from fp16doctor.prescribe.treatable import line_target
from fp16doctor.replay.joined_softmax import SoftmaxThenLog, joined, softmaxes_then_logs
from fp16doctor.replay.scaler_use import with_scale
from fp16doctor.replay.scales import scale_of
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.location import OpSite, SourceLine
from fp16doctor.schema.prescription import Prescription, Remedy, RemedyKind, Verdict, Verification
from fp16doctor.schema.tape import Tape


def propose(case: Case) -> Iterator[Prescription]:
    """One edit for each softmax in front of a finding's logarithm, where it is accepted."""
    if case.bench is None or not case.bench.tapes:
        return
    pairs: dict[SourceLine | None, SoftmaxThenLog] = {}
    for tape in case.bench.tapes:
        for pair in softmaxes_then_logs(tape):
            pairs.setdefault(pair.softmax.source, pair)
    for pair in pairs.values():
        treats = tuple(i for i, f in case.demanding if _is_of(f, pair))
        if treats:
            yield Prescription(_remedy(pair), treats, _proof(case.bench, pair.softmax))


def _is_of(finding: Finding, pair: SoftmaxThenLog) -> bool:
    """Tell whether a finding's site or reason is the softmax or its logarithm."""
    lines = {s.source for s in (pair.softmax, *pair.logs)}
    sites = (finding.site, finding.cause_site)
    return any(s is not None and s.source in lines for s in sites)


def _proof(bench: Bench, site: OpSite) -> Verification:
    """The kept steps with the edit, as they would run, against fp32 with the edit.

    At the loss scale before the fault lowered it: step after step the scaler met NaN.
    """
    if bench.exhausted:
        return Verification(Verdict.NOT_VERIFIED, reason=BUDGET_SPENT)
    scale = max(map(scale_of, bench.tapes))
    tapes, window = (
        tuple(_edited(t, site, scale) for t in ts) for ts in (bench.tapes, bench.window)
    )
    with bench.timing():
        return bench.verification(Bench(tapes, bench.left_s, window=window).as_settled())


def _edited(tape: Tape, site: OpSite, scale: float) -> Tape:
    """A step that has no such softmax, or no scaler, has that of the recording."""
    edited = joined(tape, site) or tape
    return with_scale(edited, scale) or edited


def _remedy(pair: SoftmaxThenLog) -> Remedy:
    change, call = _change(pair)
    made, logs = _place(pair.softmax), [p for p in map(_place, pair.logs) if p]
    at = f" at {made}" if made else ""
    there = f" at {', '.join(dict.fromkeys(logs))}" if logs else ""
    title = f"use `log_softmax` in place of the softmax{at} and of its `log`{there}"
    if change:
        title = f"use `{call}`{at} and leave out the `log`{there}"
    places = tuple(dict.fromkeys(line_target(s) for s in (pair.softmax, *pair.logs)))
    return Remedy(RemedyKind.CODE_FIX, title, change=change, target=places)


def _change(pair: SoftmaxThenLog) -> tuple[str, str]:
    """Return the edited lines as a diff, and the new call; both "" where a line has no edit."""
    made = _line(pair.softmax)
    renamed = with_call_renamed(made.text or "", "softmax", "log_softmax") if made else None
    if made is None or renamed is None:
        return "", ""
    texts: dict[SourceLine, str] = {made: renamed[0]}
    for line in dict.fromkeys(map(_line, pair.logs)):
        shorter = None if line is None else without_call(texts.get(line, line.text or ""), "log")
        if line is None or shorter is None:
            return "", ""
        texts[line] = shorter
    return "\n".join(diff(line, new) for line, new in texts.items()), renamed[1]


def _line(site: OpSite) -> SourceLine | None:
    return site.source or site.caller


def _place(site: OpSite) -> str:
    line = _line(site)
    return "" if line is None else f"{line.file}:{line.line}"
