"""The error budget of one step: which ops make how much of what is wrong with its gradients.

The ops' own errors are taken from the run (``local_errors``), ranked by the adjoint (``adjoint``)
and then measured: the step is replayed in fp32 with the errors of all ops put back in but those of
one, or of several. With all of them it gives the run's gradients again, which is checked; no
sixteen-bit arithmetic is repeated, so that nothing is rounded anew behind what was left out.
Shares are shares of ‖g − gref‖²: errors that have nothing to do with each other add up in squares.
Where errors add, the mean of an op's share and of what it makes alone is ⟨its error, the error⟩ as
the adjoint has it, and of all ops these means add up to 1.

Must not know cures: that an op makes the error does not say that fp32 for it alone is one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fp16doctor.errors import ReplayError
from fp16doctor.replay.adjoint import influence
from fp16doctor.replay.blame_births import budget_of_births
from fp16doctor.replay.blame_words import finite_sentence
from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.examine import random_state_kept
from fp16doctor.replay.lifetimes import spent
from fp16doctor.replay.local_errors import (
    LOSS,
    Errors,
    Results,
    end_of,
    footprint,
    results_of,
    run_errors,
)
from fp16doctor.replay.solo import SoloPlayer
from fp16doctor.schema.blame import BlamedOp, ErrorBudget
from fp16doctor.schema.policy import FP32
from fp16doctor.schema.tape import OpCall, Tape, TensorRef

LEADERS = 12  # ops that are measured
ENOUGH = 0.9  # share from which no further op is added to those measured jointly
WORTH = 0.002  # predicted share below which an op is not measured, but for the first few
FIRST = 3
EXPLAINED = 0.5  # share that the leaders make jointly, below which others are searched by halving
SEARCHED = 3  # times
SMALLEST = 1e-6  # relative error below which fp32 itself cannot tell
FAITHFUL = 0.1  # of the error by which the injected replay may miss the run
MAX_BYTES = 512 * 2**20  # of a step's results in fp32
MAX_OPS = 20_000

Budgeted = tuple[tuple[BlamedOp, ...], ErrorBudget]


def error_budget(tape: Tape, budget_s: float) -> Budgeted:
    """Return the ops that err most, first the one that makes most, and what they share.

    Ends after about ``budget_s`` seconds and says what was left. Nothing is returned, but the
    reason, where the step cannot be taken apart.
    """
    clock = Clock(budget_s)
    reason = _refusal(tape, clock)
    if reason:
        return (), _none(tape, reason)
    try:
        with random_state_kept(), torch.no_grad():
            return _budget(tape, clock)
    except ReplayError as error:
        return (), _none(tape, error.message)


class Clock:
    """Seconds that may be spent."""

    def __init__(self, seconds: float) -> None:
        self._until = time.perf_counter() + seconds

    @property
    def over(self) -> bool:
        """They are spent."""
        return time.perf_counter() >= self._until


def _refusal(tape: Tape, clock: Clock) -> str:
    if clock.over:
        return "the time budget was spent before the ops' shares were measured"
    size = footprint(tape)
    if len(tape.ops) > MAX_OPS or size > MAX_BYTES:
        return f"the step is too large to take apart: {len(tape.ops)} ops, {size / 2**20:.0f} MiB"
    return ""


def _none(tape: Tape, reason: str) -> ErrorBudget:
    return ErrorBudget(tape.step, "gradient error", 0.0, 0, reason=reason)


def _budget(tape: Tape, clock: Clock) -> Budgeted:
    run = run_errors(tape)
    if any(not bool(torch.isfinite(t).all()) for t in run.results.values()):
        return budget_of_births(tape, lambda: clock.over)
    if not run.errors:
        return (), _none(tape, "no op of the step rounds to 16 bits")
    exact = replayed(tape, {}, ())
    if any(not bool(torch.isfinite(t).all()) for t in exact.values()):
        return (), _none(tape, "the fp32 replay is not finite either")
    measure = _Measure(tape, run.errors, exact)
    total, missed = apart(exact, run.results), apart(exact, run.results, measure.all_of_them())
    quantity = "loss error" if LOSS in exact else "gradient error"
    whole = ErrorBudget(tape.step, quantity, total, len(run.errors))
    if total < SMALLEST:
        return (), replace(whole, reason=f"the {quantity} is {total:.3g}, which fp32 itself has")
    if not missed <= FAITHFUL * total:
        return (), replace(
            whole,
            reason="the ops' errors, put into the fp32 replay, do not give the run's "
            f"{quantity}: the step is ill-conditioned",
        )
    return _shared(tape, run.errors, measure, whole, clock, run.results)


def _shared(
    tape: Tape,
    errors: Errors,
    measure: _Measure,
    whole: ErrorBudget,
    clock: Clock,
    run: Results,
) -> Budgeted:
    predicted = influence(tape, errors, _seeds(tape, measure.exact, run)).shares
    leaders = _leaders(predicted, errors)
    leaders += _searched(measure, errors, leaders, clock)
    ops = [_measured(tape.ops[i], predicted.get(i, 0.0), measure, clock) for i in leaders]
    known = sorted((o for o in ops if o.share is not None), key=lambda o: -(o.share or 0.0))
    known = _jointly(known, measure, clock)
    rest = [o for o in ops if o.share is None]
    whole = replace(whole, sentence=finite_sentence(known, whole))
    if rest or clock.over:
        left = f"{len(rest)} of {len(ops)} leading ops were left unmeasured"
        whole = replace(whole, reason=f"the time budget was spent: {left}")
    return tuple(known + rest), whole


def _leaders(predicted: dict[int, float], errors: Errors) -> list[int]:
    ranked = sorted(errors, key=lambda i: -abs(predicted.get(i, 0.0)))[:LEADERS]
    return [i for n, i in enumerate(ranked) if n < FIRST or abs(predicted.get(i, 0.0)) >= WORTH]


def _searched(measure: _Measure, errors: Errors, leaders: list[int], clock: Clock) -> list[int]:
    """Return ops that the adjoint does not see, where far from linear: found by halving."""
    found: list[int] = []
    while len(found) < SEARCHED and not clock.over:
        if 1 - measure.without([*leaders, *found]) >= EXPLAINED:
            break
        rest = [i for i in errors if i not in leaders and i not in found]
        while len(rest) > 1 and not clock.over:
            middle = len(rest) // 2
            rest = max(rest[:middle], rest[middle:], key=measure.only)
        found += rest[:1]
    return found


def _measured(call: OpCall, predicted: float | None, measure: _Measure, clock: Clock) -> BlamedOp:
    if clock.over:
        return BlamedOp(call.site, None, predicted=predicted)
    share, alone = 1 - measure.without((call.index,)), measure.only((call.index,))
    return BlamedOp(call.site, share, alone, predicted=predicted)


def _jointly(ops: list[BlamedOp], measure: _Measure, clock: Clock) -> list[BlamedOp]:
    """Measure the first, the first two, the first three … until they make nearly all."""
    out: list[BlamedOp] = []
    reached = 0.0
    for n, op in enumerate(ops):
        together: float | None = op.share if n == 0 else None
        if n and reached < ENOUGH and not clock.over:
            together = 1 - measure.without([o.site.index for o in ops[: n + 1]])
        reached = max(reached, together or 0.0)
        out.append(replace(op, cumulative=together))
    return out


def _seeds(tape: Tape, exact: Results, run: Results) -> list[tuple[TensorRef, Tensor]]:
    """Return the adjoints of the results for which the shares of all errors add up to 1."""
    wrong = {n: run[n] - exact[n] for n in exact if n in run}
    norm2 = sum(float((t.double() ** 2).sum()) for t in wrong.values())
    if LOSS in wrong:
        ref = tape.losses[-1].ref
        return [(ref, (wrong[LOSS] / norm2).reshape(ref.shape))]
    producers, seeds = producers_of(tape), []
    for number, name in tape.gradients.items():
        ref_of = producers.widest_view(number)
        if ref_of is not None and name in wrong:
            seeds.append((ref_of, wrong[name] / norm2))
    return seeds


class _Measure:
    """Replays with some errors left out."""

    def __init__(self, tape: Tape, errors: Errors, exact: Results) -> None:
        self._tape, self._errors, self.exact = tape, errors, exact
        self._whole = self._error(errors)

    def _error(self, chosen: Collection[int]) -> float:
        return apart(self.exact, replayed(self._tape, self._errors, chosen))

    def all_of_them(self) -> Results:
        """Return the results with every error in."""
        return replayed(self._tape, self._errors, self._errors)

    def without(self, left_out: Iterable[int]) -> float:
        """Return what remains of the squared error without those of some ops, as a share."""
        gone = set(left_out)
        return (self._error([i for i in self._errors if i not in gone]) / self._whole) ** 2

    def only(self, chosen: Collection[int]) -> float:
        """Return the squared error that some ops make alone, as a share of that of all."""
        return (self._error(chosen) / self._whole) ** 2


def replayed(
    tape: Tape,
    errors: Errors,
    chosen: Collection[int],
    right: Mapping[int, tuple[TensorRef, Tensor]] | None = None,
) -> Results:
    """Return the results of the step in fp32 with the errors of the chosen ops put back in.

    ``right``: op -> the value that its result is given.
    """
    right = right or {}
    player, forget, taken = SoloPlayer(tape, FP32), spent(tape), set(chosen)
    for call in tape.ops[: end_of(tape)]:
        player.play(call)
        for ref, error in errors[call.index] if call.index in taken else ():
            player.env.tensor(ref).add_(error)
        if call.index in right:
            player.env.tensor(right[call.index][0]).copy_(right[call.index][1])
        for number in forget.get(call.index, ()):
            player.env.drop(number)
    return results_of(tape, player)


def apart(exact: Results, a: Results, b: Results | None = None) -> float:
    """Return ‖a − b‖ / ‖exact‖ over all results; ``b`` is ``exact`` where it is not given."""
    b = exact if b is None else b
    gap2 = sum(float(((a[n].double() - b[n].double()) ** 2).sum()) for n in exact if n in a)
    norm2 = sum(float((t.double() ** 2).sum()) for t in exact.values())
    return math.sqrt(gap2 / norm2) if norm2 else math.inf
