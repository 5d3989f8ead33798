"""Which steps of a watched loop are surveyed, how closely, and which are taped as well.

Must not know how a step is surveyed or taped.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from fp16doctor.errors import UsageError
from fp16doctor.record.range_hooks import Look
from fp16doctor.record.survey_plan import sampled

FIRST_TAPED = 3  # the first steps are taped
TAPES_AFTER_FULL = 10  # so many rounds of full statistics make one taped step
MOST_TROUBLE_TAPES = 12  # steps taped because the scaler skipped the one before
MOST_NEARING_TAPES = 20  # steps taped because the values of the one before came near their limit
FOUND_INF, NEARING = ("", "found_inf"), ("", "nearing")  # troubles of no module


class Action(IntEnum):
    """What is done in one step; the names are those of ``torch.profiler.ProfilerAction``."""

    NONE = 0  # nothing at all
    WARMUP = 1  # the screen: largest magnitude, inf or NaN
    RECORD = 2  # full statistics
    RECORD_AND_SAVE = 3  # and a tape of every op


class StepPlan:
    """Answers for each step; asked once, in order."""

    def __init__(
        self, every: int, schedule: Callable[[int], Any] | None, *, every_step: bool = False
    ) -> None:
        self._every, self._schedule, self._every_step = every, schedule, every_step
        self._actions: dict[int, Action] = {}
        self._known: set[tuple[str, str]] = set()
        self._skips = 0
        self._nearing = 0

    def look(self, step: int) -> Look:
        """Return how closely a step is surveyed."""
        return Look(min(self._action(step), Action.RECORD))

    def wants_tape(self, step: int, trouble: frozenset[tuple[str, str]]) -> bool:
        """Whether a step is taped; ``trouble`` is what went wrong in the one before.

        An inf that a module returns in every step (a mask) is followed once only.
        """
        action = self._action(step)
        if self._every_step or action is Action.RECORD_AND_SAVE:
            return True
        worth = [self._is_new(trouble), self._comes_near(trouble)]  # both count
        return any(worth) and action is not Action.NONE

    def _comes_near(self, trouble: frozenset[tuple[str, str]]) -> bool:
        self._nearing += NEARING in trouble
        return NEARING in trouble and self._nearing <= MOST_NEARING_TAPES

    def _is_new(self, trouble: frozenset[tuple[str, str]]) -> bool:
        places = trouble - {FOUND_INF, NEARING}
        fresh = places - self._known
        self._known |= places
        if FOUND_INF not in trouble:
            return bool(fresh)
        self._skips += 1
        return self._skips <= MOST_TROUBLE_TAPES

    def _action(self, step: int) -> Action:
        known = self._actions.get(step)
        if known is None:
            self._actions = {step: self._decide(step)}  # earlier steps are not asked for again
            known = self._actions[step]
        return known

    def _decide(self, step: int) -> Action:
        if self._schedule is not None:
            return _action_named(self._schedule(step))
        if step < FIRST_TAPED or step % (self._every * TAPES_AFTER_FULL) == 0:
            return Action.RECORD_AND_SAVE
        return Action.RECORD if sampled(step, self._every) else Action.WARMUP


def _action_named(answer: Any) -> Action:
    name = getattr(answer, "name", answer)
    try:
        return Action[name]
    except KeyError:
        raise UsageError(
            f"schedule= answered {answer!r} for a step; it must answer a ProfilerAction or one of "
            + ", ".join(repr(a.name) for a in Action),
            "unknown-action",
        ) from None
