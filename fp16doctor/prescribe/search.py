"""The shortest keep-list: grown birth by birth, then shrunk as long as it still holds.

With a margin, what comes within two binades of the limit is put on the list too: the next batch
is another one.

Must not know how a candidate is judged (``bench``) or worded (``remedies``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fp16doctor.prescribe.attempt import Attempt
from fp16doctor.replay.trial import Trial
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.policy import KeepRule, PrecisionPolicy

MAX_ROUNDS = 12  # places that may be added

Unit = Callable[[OpSite], str]


class Tries(Protocol):
    """The bench, or the bench with something fixed beside what is tried on it."""

    def attempt(self, policy: PrecisionPolicy) -> Attempt:
        """Try a policy on every kept step."""

    def reference(self, place: int) -> Trial:
        """Return the fp32 replay of one kept step."""


def grow(
    bench: Tries, start: tuple[str, ...], unit: Unit, *, margin: bool = True
) -> Attempt | None:
    """Add the place of the next birth until the list is accepted; None where it never is."""
    patterns, accepted = dict.fromkeys(start), None
    for _ in range(MAX_ROUNDS):
        attempt = bench.attempt(policy_of(tuple(patterns)))
        if attempt.failure:
            break
        if attempt.accepted:
            accepted = attempt
            if not margin:
                break
        found = _near(attempt) if attempt.accepted else _births(bench, attempt)
        fresh = [p for p in map(unit, found) if p not in patterns]
        if not fresh:
            break
        patterns.update(dict.fromkeys(fresh))
    return accepted


def _near(attempt: Attempt) -> list[OpSite]:
    """Return where the format's limit, lowered by two binades, is reached on any step."""
    return [s for trial in attempt.trials for s in trial.near]


def _births(bench: Tries, attempt: Attempt) -> list[OpSite]:
    """Return what was born on each step and is not in fp32 as well: a mask stays a mask."""
    found = []
    for place, trial in enumerate(attempt.trials):
        known = {s.index for s in bench.reference(place).births}
        found += [s for s in trial.births if s.index not in known]
    return found


def shrink(bench: Tries, attempt: Attempt, *, margin: bool = True) -> Attempt:
    """Leave out every place without which the list is still accepted, the last ones first."""
    best = attempt  # a budget that is spent refuses: the list stays as it is
    for rule in reversed(attempt.policy.keep):
        rest = tuple(r for r in best.policy.keep if r != rule)
        if not rest:
            continue
        shorter = bench.attempt(policy_of(tuple(r.pattern for r in rest)))
        closer = margin and len(_near(shorter)) > len(_near(best))
        if shorter.accepted and not closer:
            best = shorter
    return best


def policy_of(patterns: tuple[str, ...]) -> PrecisionPolicy:
    """Return the policy that computes the named places in fp32."""
    return PrecisionPolicy("keep-list", keep=tuple(KeepRule(p) for p in patterns))
