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
from fp16doctor.prescribe.stored import trains_half_parameters
from fp16doctor.prescribe.treatable import codes_of, misuses_scaler
from fp16doctor.replay.scales import scale_of
from fp16doctor.schema.finding import SCALE_RAISED, Fault, Finding
from fp16doctor.schema.prescription import (
    Prescription,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)
from fp16doctor.schema.spelling import number, power

USUAL = 65536.0  # init_scale of torch.amp.GradScaler
ROOM = 4.0  # factor that it stays away from both ends of the window
FURTHER = 8  # binades that the consecutive steps may need below the kept ones
LARGEST = 24  # exponent of the largest scale tried: apex's bound
NONE = "at every scale something is lost or not finite"
_SCALER = """\
scaler = torch.amp.GradScaler({device}, init_scale={scale})
scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"""
_BY_HAND = """\
# once; the optimizer is made of these: divided in 16 bits, the gradients would be lost again
masters = [p.detach().float() for p in model.parameters()]
# in each step
({scale} * loss).backward()
for p, master in zip(model.parameters(), masters):
    master.grad = None if p.grad is None else p.grad.float() / {scale}
    p.grad = None
optimizer.step()
with torch.no_grad():
    for p, master in zip(model.parameters(), masters):
        p.copy_(master)"""
_LOADED = """\
# once, behind the scaler's load_state_dict: the state that it loads holds a scale of {own}
scaler.load_state_dict({{**scaler.state_dict(), "scale": {scale}}})"""
CODES = frozenset({"FD104", "FD201", "FD401"})


def makes_scaler(remedy: Remedy) -> bool:
    """Tell whether a remedy's code is a GradScaler and nothing else beside it."""
    is_scale = remedy.kind is RemedyKind.LOSS_SCALE and isinstance(remedy.value, dict)
    return is_scale and remedy.change.startswith(_SCALER.partition("(")[0])


def of_the_scale(finding: Finding) -> bool:
    """Tell whether another loss scale may cure it; none mends how the scale is used, or raised."""
    if any(e.quantity == SCALE_RAISED for e in finding.evidence):
        return False
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
        remedy = Remedy(RemedyKind.LOSS_SCALE, f"another loss scale (1 to {power(LARGEST)})")
        yield Prescription(remedy, treats, _none(bench))
        return
    low, high = window
    best = next((s for s in _preferred(low, high) if bench.attempt_scale(s).accepted), None)
    best = best or _known(bench, low, high)
    yield case.prescribe(scale_remedy(bench, low, best, high), treats, bench.attempt_scale(best))


def _known(bench: Bench, low: float, high: float) -> float:
    """Return, of the scales that were tried and accepted, the one with most room on both sides."""
    tried = {a.scale: a for a in bench.tried if a.scale is not None and a.judgements}
    scales = [s for s in tried if s == 2.0 ** int(log2(s)) and low <= s <= high]
    accepted = [s for s in scales if bench.attempt_scale(s).accepted]
    return max(accepted, key=lambda s: (min(s / low, high / s), s), default=low)


def scale_remedy(bench: Bench, low: float, best: float, high: float) -> Remedy:
    """A GradScaler and the window of its scale; a constant that is there already gives way.

    GradScaler refuses to unscale 16-bit gradients: a model stored so gets a constant by hand.
    """
    tape = bench.tapes[0]
    has_scaler = tape_has_scale(tape)
    first = scale_of(min(bench.tapes, key=lambda t: t.step))
    loaded = has_scaler and first < 1  # no scaler is made so: its state comes from another run
    own = 1.0 if has_scaler and not loaded else first
    instead = f" in place of {number(own)}" if own != 1 else ""
    both = f"# {instead.strip()}, on both sides of backward\n" if own > 1 else ""
    by_hand = not has_scaler and trains_half_parameters(tape)
    code = _LOADED if loaded else _BY_HAND if by_hand else _SCALER
    change = code.format(device=repr(device_of(tape)), scale=f"{best:.1f}", own=number(own))
    window = f"{_power(low)} to {_power(high)} hold" if low < high else "no other holds"
    return Remedy(
        RemedyKind.LOSS_SCALE,
        _title(best, window, has_scaler=has_scaler, by_hand=by_hand) + instead,
        change=both + change,
        value={"low": low, "recommended": best, "high": high},
    )


def _title(best: float, window: str, *, has_scaler: bool, by_hand: bool) -> str:
    if by_hand:
        return (
            f"multiply the loss by {_power(best)} before backward and divide the gradients by it "
            f"in fp32 afterwards ({window})"
        )
    first = f"its default; {window}" if best == USUAL else window
    if has_scaler:
        return f"start the GradScaler at {_power(best)} ({first})"
    return f"scale the loss with a GradScaler that starts at {_power(best)} ({first})"


def _power(scale: float) -> str:
    return power(round(log2(scale)))


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
    """GradScaler's own first scale where it has room, then equal room on both sides."""
    middle = low * 2.0 ** ((int(log2(high / low)) + 1) // 2)
    usual = (USUAL,) if low * ROOM <= USUAL <= high / ROOM else ()
    return (*usual, middle)


def _window(bench: Bench) -> tuple[float, float] | None:
    """Return the smallest and the largest scale that are accepted, powers of two from 1 on."""
    high = last_of(range(LARGEST + 1), lambda e: bench.finite_at(2.0**e))
    high = None if high is None else _lasting(bench, high)
    if high is None:
        return None
    low = first_of(range(high + 1), lambda e: bench.attempt_scale(2.0**e).accepted)
    return None if low is None else (2.0**low, 2.0**high)


def _lasting(bench: Bench, high: int) -> int | None:
    """Return the largest exponent, from ``high`` down, whose consecutive steps stay finite too.

    Gradients of the steps behind the kept ones may be larger by some binades.
    """
    for exponent in range(high, max(high - FURTHER, -1), -1):
        attempt = bench.attempt_scale(2.0**exponent)
        if attempt.accepted or attempt.course is None or not attempt.course_reason:
            return exponent
    return None


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
