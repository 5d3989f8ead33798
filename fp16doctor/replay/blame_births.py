"""The error budget of a step that is not finite: which births of inf and NaN have to go.

Here the ops themselves are played in fp32, each with the backward ops of its line: an inf has no
size that could be taken out of a result.

Must not know budgets of finite errors (``blame``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from fp16doctor.replay.blame_words import births_sentence
from fp16doctor.replay.solo import SoloPlayer
from fp16doctor.replay.trial import Trial, run_trial, run_with
from fp16doctor.schema.blame import BlamedOp, ErrorBudget
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.policy import AS_RUN, FP32, PrecisionPolicy
from fp16doctor.schema.tape import Tape

MOST = 12  # births that are followed
ELEMENTS = "non-finite gradient elements"


class KeptOps(SoloPlayer):
    """The step as run, but for some ops that compute in fp32."""

    def __init__(self, tape: Tape, kept: Collection[int]) -> None:
        super().__init__(tape, PrecisionPolicy("births in fp32"))
        self._kept = frozenset(kept)
        if kept:
            self._formats_of_gradients()


def budget_of_births(
    tape: Tape, over: Callable[[], bool]
) -> tuple[tuple[BlamedOp, ...], ErrorBudget]:
    """Return the births that have to go, in the order in which they show, and what goes with each.

    Raises ReplayError where the step cannot be played.
    """
    run, exact = run_trial(tape, AS_RUN), run_trial(tape, FP32)
    total = _count(tape, run)
    quantity = ELEMENTS if tape.gradients else "non-finite loss"
    births = _fresh(run, exact, ())
    whole = ErrorBudget(tape.step, quantity, float(total), len(births))
    if not exact.finite or not births or not total:
        why = "the fp32 replay is not finite either" if not exact.finite else _NO_BIRTH
        return (), replace(whole, reason=why)
    return _followed(tape, exact, births, whole, over)


_NO_BIRTH = "no op of the replayed step makes inf or NaN of finite inputs"


def _followed(
    tape: Tape, exact: Trial, births: list[OpSite], whole: ErrorBudget, over: Callable[[], bool]
) -> tuple[tuple[BlamedOp, ...], ErrorBudget]:
    """Take out birth by birth, and those that show behind them, until nothing is non-finite."""
    ops: list[BlamedOp] = []
    waiting, left = list(births), whole.total
    while waiting and left and len(ops) < MOST and not over():
        site = waiting.pop(0)
        alone = _without(tape, [site])
        trial = _without(tape, [*(o.site for o in ops), site])
        left = float(_count(tape, trial))
        share, together = (1 - x / whole.total for x in (_count(tape, alone), left))
        ops.append(BlamedOp(site, share, cumulative=together))
        taken = {o.site.index for o in ops} | {s.index for s in waiting}
        waiting += _fresh(trial, exact, taken)
    reason = "the time budget was spent before all births were followed" if over() and left else ""
    sentence = births_sentence(ops, whole, finite=not left)
    return tuple(ops), replace(whole, sentence=sentence, reason=reason)


def _without(tape: Tape, sites: list[OpSite]) -> Trial:
    kept = {i for site in sites for i in with_backward(tape, site)}
    return run_with(KeptOps(tape, kept))


def with_backward(tape: Tape, site: OpSite) -> set[int]:
    """Return an op and the backward ops of its line in its module."""
    if site.phase is Phase.BACKWARD or site.source is None:
        return {site.index}
    place = (site.module_path, site.source, site.caller)
    backward = (c for c in tape.ops if c.site.phase is Phase.BACKWARD)
    same = {c.index for c in backward if _place(c.site) == place}
    return {site.index} | same


def _place(site: OpSite) -> tuple[object, ...]:
    return site.module_path, site.source, site.caller


def _fresh(trial: Trial, exact: Trial, taken: Collection[int]) -> list[OpSite]:
    """Return births that are none in fp32 and not known yet."""
    known = {s.index for s in exact.births} | set(taken)
    return [s for s in trial.births if s.index not in known][:MOST]


def _count(tape: Tape, trial: Trial) -> int:
    return trial.nonfinite.get("gradients" if tape.gradients else "loss", 0)
