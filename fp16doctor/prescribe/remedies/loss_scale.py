"""Searches the window of loss scales: nothing lost below, nothing infinite above.

Must not know how a scale is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log2

from fp16doctor.prescribe.bench import BUDGET_SPENT, Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.hidden import named_places, place_of
from fp16doctor.prescribe.steps import device_of, tape_has_scale
from fp16doctor.prescribe.treatable import codes_of, misuses_scaler
from fp16doctor.replay.scales import scale_of
from fp16doctor.schema.finding import Fault, Finding
from fp16doctor.schema.prescription import (
    Prescription,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)

USUAL = 65536.0  # init_scale of torch.amp.GradScaler
ROOM = 4.0  # factor that it stays away from both ends of the window
LARGEST = 24  # exponent of the largest scale tried: apex's bound
NONE = "at every scale something is lost or not finite"
CODES = frozenset({"FD104", "FD201", "FD401"})


def of_the_scale(finding: Finding) -> bool:
    """Tell whether another loss scale may cure it; none mends how the scale is used."""
    may = bool(codes_of(finding) & CODES) or finding.fault is Fault.LOSS_SCALE
    return may and not misuses_scaler(finding)


def propose(case: Case) -> Iterator[Prescription]:
    """One prescription where gradients are lost or overflow."""
    treats = tuple(i for i, f in case.demanding if of_the_scale(f))
    if not treats or case.bench is None or not case.bench.tapes:
        return
    bench = case.bench
    window = _window(bench)
    if window is None:
        remedy = Remedy(RemedyKind.LOSS_SCALE, f"a loss scale from 1 to 2^{LARGEST}")
        yield Prescription(remedy, treats, _none(bench))
        return
    low, high = window
    attempts = ((s, bench.attempt_scale(s)) for s in _preferred(low, high))
    best, attempt = next((x for x in attempts if x[1].accepted), (low, bench.attempt_scale(low)))
    yield case.prescribe(scale_remedy(bench, low, best, high), treats, attempt)


def scale_remedy(bench: Bench, low: float, best: float, high: float) -> Remedy:
    """A loss scale, and the window it lies in; a constant that is there already gives way."""
    tape = bench.tapes[0]
    own = 1.0 if tape_has_scale(tape) else scale_of(tape)
    instead = f" in place of {own:.0f}" if own != 1 else ""
    both = f"# {instead.strip()}, on both sides of backward\n" if instead else ""
    return Remedy(
        RemedyKind.LOSS_SCALE,
        f"multiply the loss by {best:.0f}{instead} before backward, divide the gradients by it "
        "afterwards",
        change=f"{both}scaler = torch.amp.GradScaler({device_of(tape)!r}, init_scale={best:.1f})\n"
        "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
        value={"low": low, "recommended": best, "high": high},
    )


def _none(bench: Bench) -> Verification:
    if bench.exhausted:
        return Verification(Verdict.NOT_VERIFIED, reason=BUDGET_SPENT)
    another = next((a for s in (1.0, 2.0) if (a := bench.attempt_scale(s)).failure), None)
    if another is not None:
        return Verification(Verdict.NOT_VERIFIED, reason=another.failure)
    reason = "; ".join(filter(None, ("none helps: " + NONE, _in_the_way(bench))))
    steps = tuple(t.step for t in bench.tapes)
    return Verification(Verdict.REFUTED, reason, steps=steps)


def _in_the_way(bench: Bench) -> str:
    """Which ops are not finite at scale 1 already: no smaller one is tried. "" for none."""
    trials = bench.attempt_scale(1.0).trials
    sites = [
        site
        for place, trial in enumerate(trials)
        for site in trial.births
        if site.index not in {other.index for other in bench.reference(place).births}
    ]
    places = named_places(sites)
    verb = "makes" if len(set(map(place_of, sites))) == 1 else "make"
    return f"{places} {verb} inf or NaN at scale 1 already" if places else ""


def _preferred(low: float, high: float) -> tuple[float, ...]:
    """GradScaler's own first scale where it has room, then equal headroom on both sides."""
    middle = low * 2.0 ** (int(log2(high / low)) // 2)
    usual = (USUAL,) if low * ROOM <= USUAL <= high / ROOM else ()
    return (*usual, middle, low)


def _window(bench: Bench) -> tuple[float, float] | None:
    """Return the smallest and the largest scale that are accepted, powers of two from 1 on."""
    high = last_of(range(LARGEST + 1), lambda e: bench.finite_at(2.0**e))
    if high is None:
        return None
    low = first_of(range(high + 1), lambda e: bench.attempt_scale(2.0**e).accepted)
    return None if low is None else (2.0**low, 2.0**high)


def last_of(span: range, holds: Callable[[int], bool]) -> int | None:
    """Return the last exponent for which a property holds that holds up to a border."""
    low, high = span.start, span.stop - 1
    if not holds(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def first_of(span: range, holds: Callable[[int], bool]) -> int | None:
    """Return the first exponent for which a property holds that holds from a border on."""
    low, high = span.start, span.stop - 1
    if not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high
