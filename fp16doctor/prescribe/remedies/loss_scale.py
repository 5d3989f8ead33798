"""Searches the window of loss scales: nothing lost below, nothing infinite above.

Must not know how a scale is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log2

from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.treatable import codes_of
from fp16doctor.replay.scales import scale_of
from fp16doctor.schema.finding import Fault
from fp16doctor.schema.policy import PrecisionPolicy
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
_CODES = frozenset({"FD104", "FD201", "FD401"})


def propose(case: Case) -> Iterator[Prescription]:
    """One prescription where gradients are lost or overflow."""
    treats = tuple(
        i for i, f in case.demanding if codes_of(f) & _CODES or f.fault is Fault.LOSS_SCALE
    )
    if not treats or case.bench is None or not case.bench.tapes:
        return
    scale = scale_of(case.bench.tapes[0])
    exponents = range(-int(log2(scale)), LARGEST - int(log2(scale)) + 1)
    window = _window(case.bench, exponents)
    if window is None:
        remedy = Remedy(RemedyKind.LOSS_SCALE, "no loss scale from 1 to 2²⁴ helps", value=None)
        proof = Verification(
            Verdict.REFUTED, "at every scale something is lost or not finite", steps=()
        )
        yield Prescription(remedy, treats, proof)
        return
    low, high = (scale * 2.0**e for e in window)
    best = _best(low, high)
    attempt = case.bench.attempt(_policy(int(log2(best / scale))))
    remedy = Remedy(
        RemedyKind.LOSS_SCALE,
        f"multiply the loss by {best:.0f} before backward, divide the gradients by it afterwards",
        change=f"scaler = torch.amp.GradScaler(device_type, init_scale={best:.1f})\n"
        "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
        value={"low": low, "recommended": best, "high": high},
    )
    yield case.prescribe(remedy, treats, attempt)


def _best(low: float, high: float) -> float:
    """Return GradScaler's own first scale where it has room, else equal headroom on both sides."""
    if low * ROOM <= USUAL <= high / ROOM:
        return USUAL
    return low * 2.0 ** (int(log2(high / low)) // 2)


def _window(bench: Bench, exponents: range) -> tuple[int, int] | None:
    """Return the exponents of the smallest and the largest factor that are accepted."""
    high = _last(exponents, lambda e: _finite(bench, e))
    if high is None:
        return None
    low = _first(range(exponents.start, high + 1), lambda e: _saved(bench, e))
    return None if low is None else (low, high)


def _finite(bench: Bench, exponent: int) -> bool:
    attempt = bench.attempt(_policy(exponent))
    return not attempt.failure and not any(j.nonfinite for j in attempt.judgements)


def _saved(bench: Bench, exponent: int) -> bool:
    return bench.attempt(_policy(exponent)).accepted


def _last(span: range, holds: Callable[[int], bool]) -> int | None:
    """Return the last exponent for which a property holds that holds up to a border."""
    low, high = span.start, span.stop - 1
    if not holds(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _first(span: range, holds: Callable[[int], bool]) -> int | None:
    """Return the first exponent for which a property holds that holds from a border on."""
    low, high = span.start, span.stop - 1
    if not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


def _policy(exponent: int) -> PrecisionPolicy:
    return PrecisionPolicy(f"loss scale × 2^{exponent}", scale_factor=2.0**exponent)
