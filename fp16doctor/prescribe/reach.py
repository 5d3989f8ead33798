"""How far the proof of the recommended cure goes: one step, a few, and a run of consecutive ones.

Must not know how a cure is tried or chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fp16doctor.prescribe.bench import Bench
from fp16doctor.schema.prescription import (
    TOGETHER,
    Prescription,
    Recommendation,
    RecommendationStatus,
    Verdict,
    Verification,
)

_BY_REPLAY = "by replay of "
_TOLD = (_BY_REPLAY, "replayed up to ")  # a proof that says itself which steps it is of


def with_reach(
    found: Sequence[Prescription], answer: Recommendation, bench: Bench | None
) -> tuple[Prescription, ...]:
    """Return the prescriptions, those of the answer with the steps that speak for them.

    Nothing is said where several single steps were tried: their numbers stand in the proof.
    """
    chosen = answer.prescriptions if answer.status is RecommendationStatus.PRESCRIBED else ()
    window = bench.window if bench is not None else ()
    first = window[0].step if window else None
    return tuple(
        replace(p, verification=_told(p.verification, first)) if i in chosen else p
        for i, p in enumerate(found)
    )


def _told(proof: Verification, first: int | None) -> Verification:
    words = _words(proof.steps, len(proof.losses), first)
    told = any(says in proof.reason for says in _TOLD)
    if proof.verdict is not Verdict.VERIFIED or not words or told:
        return proof
    joint = proof.reason.startswith(TOGETHER)  # that has to come first
    parts = (proof.reason, words) if joint else (words, proof.reason)
    return replace(proof, reason="; ".join(filter(None, parts)))


def _words(steps: tuple[int, ...], n_course: int, first: int | None) -> str:
    if not steps:
        return ""
    run = f"{n_course} consecutive ones from step {first} on" if n_course > 1 else ""
    if len(steps) == 1:
        alone = f"{_BY_REPLAY}step {steps[0]}"
        return f"{alone} and {run}" if run else f"on one step only, {alone}"
    *some, last = map(str, steps)
    return f"{_BY_REPLAY}steps {', '.join(some)} and {last}, and {run}" if run else ""
