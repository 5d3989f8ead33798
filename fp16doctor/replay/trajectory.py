"""Consecutive steps replayed as one run under a policy.

Each step brings its own ops, batch and random states; what lives on from step to step (weights,
optimizer state, buffers, EMA copies) is carried from one replay to the next. A step that the
scaler skipped has no optimizer on its tape: there the weights follow the gradient, with a step
length that the reference run sets.

Must not know when a course is good enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fp16doctor.errors import ReplayError
from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.environment import Live
from fp16doctor.replay.examine import random_state_kept
from fp16doctor.replay.lifetimes import spent
from fp16doctor.replay.op_traits import base
from fp16doctor.replay.parameters import parameter_numbers
from fp16doctor.replay.scales import read_loss, scale_of
from fp16doctor.replay.solo import SoloPlayer
from fp16doctor.replay.trial import loss_at
from fp16doctor.schema.policy import PrecisionPolicy
from fp16doctor.schema.tape import OpCall, Tape, refs_in

PREDICTED_DECREASE = 0.02  # of the loss, by a step along the gradient where no optimizer ran
SAFETY = 8  # a step that is right for one batch may be too long for the next
MAX_HALVINGS = 8  # times that a step is shortened by four until the loss falls
_SCALER_OPS = ("_amp_update_scale_", "_amp_foreach_non_finite_check_and_unscale_")


@dataclass(slots=True)
class Course:
    """The losses of consecutive steps under one policy."""

    policy: str
    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # loss scale divided out
    step_lengths: list[float] = field(default_factory=list)  # along the gradient; 0 with optimizer
    failure: str = ""  # why it ends early

    @property
    def first_nonfinite(self) -> int | None:
        """Step whose loss is the first that is not finite."""
        pairs = zip(self.steps, self.losses, strict=True)
        return next((s for s, x in pairs if x - x != 0), None)


def follow(
    tapes: tuple[Tape, ...],
    policy: PrecisionPolicy,
    reference: Course | None = None,
    policy_of: Callable[[Tape], PrecisionPolicy] | None = None,
    carried: dict[int, Live] | None = None,
    look: Callable[[OpCall, SoloPlayer], None] = lambda call, player: None,
) -> Course:
    """Replay ``tapes`` one behind the other.

    ``reference`` gives the step lengths where needed; ``policy_of`` a policy for each step where
    it is not the same for all. ``carried`` is filled with what the steps leave behind, by address;
    ``look`` is called behind each op.
    """
    course = Course(policy.name)
    carried = {} if carried is None else carried
    with random_state_kept(), torch.no_grad():
        for place, tape in enumerate(tapes):
            given = _length(reference, place)
            mine = policy if policy_of is None else policy_of(tape)
            try:
                _Leg(tape, mine, carried, course, given).run(look)
            except ReplayError as error:
                course.failure = f"step {tape.step}: {error.message}"
                break
            if course.first_nonfinite is not None:
                break
    return course


def _length(reference: Course | None, place: int) -> float | None:
    """Return the reference's step length; its own where the reference ended before."""
    if reference is None or place >= len(reference.step_lengths):
        return None
    return reference.step_lengths[place]


class _Leg:
    """One step of a course."""

    def __init__(
        self,
        tape: Tape,
        policy: PrecisionPolicy,
        carried: dict[int, Live],
        course: Course,
        step_length: float | None,
    ) -> None:
        self._tape, self._carried, self._course = tape, carried, course
        self._given, self._factor = step_length, policy.scale_factor
        self._producers = producers_of(tape)
        self._player = SoloPlayer(tape, policy)
        self._loss = 0.0
        self._gradients: dict[str, Tensor] = {}  # where backward ended, if no optimizer follows
        self._fixed = _scaler_state(tape)

    def run(self, look: Callable[[OpCall, SoloPlayer], None]) -> None:
        for number, leaf in self._tape.leaves.items():
            live = self._carried.get(leaf.key)
            if live is not None and number not in self._fixed:
                self._player.env.adopt(number, live)
        gone = spent(self._tape)
        end = self._tape.backward_ends[-1] if self._tape.backward_ends else -1
        for call in self._tape.ops:
            if call.index == end:
                self._backward_ended()
            self._read_loss(call.index)
            self._player.play(call)
            look(call, self._player)
            for number in gone.get(call.index, ()):
                self._player.env.drop(number)
        if end >= len(self._tape.ops):
            self._backward_ended()
        self._read_loss(len(self._tape.ops))
        self._course.steps.append(self._tape.step)
        self._course.losses.append(self._loss / scale_of(self._tape))
        self._course.step_lengths.append(0.0 if self._optimizer_ran() else self._descend())
        self._keep()

    def _read_loss(self, index: int) -> None:
        for mark in self._tape.losses:
            if mark.index == index and self._player.env.has(mark.ref.storage):
                self._loss += read_loss(self._player, mark)

    def _backward_ended(self) -> None:
        """Take a changed loss scale out again, as the script would, where gradients are stored.

        A gradient stored in 16 bits goes on in fp32: with the run's scale it may not fit. Where no
        optimizer comes, the gradients are kept: a scaler divides its scale out of them.
        """
        skipped = not self._optimizer_ran()
        for number, name in self._tape.gradients.items():
            ref = self._producers.widest_view(number)
            if ref is None or not self._player.env.has(number):
                continue
            if self._factor != 1.0:
                wide = self._player.env.widened_in_place(ref, torch.float32)
                wide.mul_(1 / self._factor)
            if skipped:
                self._gradients[name] = self._player.env.tensor(ref).clone()

    def _optimizer_ran(self) -> bool:
        return any(
            leaf.is_parameter and self._producers.writers(number)
            for number, leaf in self._tape.leaves.items()
        )

    def _descend(self) -> float:
        """Move the weights along the gradient; return the step length."""
        norm2 = sum(float((g.double() ** 2).sum()) for g in self._gradients.values())
        length = self._given
        if length is None:
            length = PREDICTED_DECREASE * abs(self._loss) / norm2 if norm2 > 0 else 0.0
            length = self._shortened(self._gradients, length, norm2)
        numbers = parameter_numbers(self._tape)
        for name, gradient in self._gradients.items():
            number = numbers.get(name, -1)
            ref = self._producers.widest_view(number)
            if ref is not None and gradient.numel() == self._player.env.tensor(ref).numel():
                weight = self._player.env.own(ref)
                weight.sub_((length * gradient.double()).reshape(weight.shape).to(weight.dtype))
                self._carry(number, self._tape.leaves[number].key)
        return length

    def _keep(self) -> None:
        """Carry what the step wrote and the script still held at its end."""
        for number, key in self._tape.keys.items():
            if number not in self._fixed and self._producers.writers(number):
                self._carry(number, key)

    def _shortened(self, gradients: dict[str, Tensor], length: float, norm2: float) -> float:
        """Return a step length that lowers the loss of this batch by a quarter of the forecast.

        Source: the sufficient-decrease condition, Nocedal and Wright, Numerical Optimization, 3.1.
        """
        for _ in range(MAX_HALVINGS):
            after = self._loss_behind(gradients, length)
            if after is not None and after <= self._loss - 0.25 * length * norm2:
                return length / SAFETY
            length /= 4
        return 0.0

    def _loss_behind(self, gradients: dict[str, Tensor], length: float) -> float | None:
        """Return the loss of this batch behind a step along the gradient."""
        moved = {}
        for name, number in parameter_numbers(self._tape).items():
            ref = self._producers.widest_view(number)
            if name in gradients and ref is not None:
                weight = self._player.env.tensor(ref).float()
                if gradients[name].numel() == weight.numel():
                    gradient = gradients[name].float().reshape(weight.shape)
                    moved[name] = weight - length * gradient
        return loss_at(self._tape, moved)

    def _carry(self, number: int, key: int) -> None:
        live = self._player.env.live(number)
        if live is not None:
            self._carried[key] = live


def _scaler_state(tape: Tape) -> set[int]:
    """Return the storages of a GradScaler: its scale stays as recorded."""
    return {
        ref.storage
        for call in tape.ops
        if base(call.op) in _SCALER_OPS
        for ref in refs_in(call.args[1:] if "unscale" in call.op else call.args)
    }
