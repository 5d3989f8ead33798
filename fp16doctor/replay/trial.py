"""One step under one candidate policy: its loss, its gradients, and what is not finite in it.

Must not know whether that is good enough (``prescribe.acceptance``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fp16doctor.replay.calls import outputs_of
from fp16doctor.replay.constants import has_infinite
from fp16doctor.replay.dataflow import producers_of, writes
from fp16doctor.replay.environment import is_float_ref, torch_dtype
from fp16doctor.replay.examine import random_state_kept
from fp16doctor.replay.lifetimes import spent
from fp16doctor.replay.narrow import NarrowPlayer
from fp16doctor.replay.noise import NoisyPlayer
from fp16doctor.replay.op_traits import is_uninitialised
from fp16doctor.replay.parameters import parameter_numbers, parameter_values
from fp16doctor.replay.scales import read_loss
from fp16doctor.replay.solo import SoloPlayer
from fp16doctor.replay.values import is_float, nonfinite_code
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.policy import FP32, PrecisionPolicy
from fp16doctor.schema.tape import OpCall, Tape, refs_in

NEAR = 65520 / 4  # fp16's overflow threshold, lowered by two binades
_BEFORE_BACKWARD = (Phase.FORWARD, Phase.LOSS)


@dataclass(slots=True)
class Trial:
    """What one replay under one policy gave."""

    policy: PrecisionPolicy
    loss: float | None = None  # as backward gets it: the run's own loss scale included
    gradients: dict[str, Tensor] = field(default_factory=dict)  # float32, scale_factor divided out
    updates: dict[str, Tensor] = field(default_factory=dict)  # parameter: end − start, float32
    nonfinite: dict[str, int] = field(default_factory=dict)  # sink -> elements
    births: list[OpSite] = field(default_factory=list)  # ops that made inf or NaN of finite inputs
    near: list[OpSite] = field(default_factory=list)  # with a keep-list: fp16 results near max
    nonfinite_ops: int = 0

    @property
    def finite(self) -> bool:
        """Loss, gradients, parameters and buffers are all finite."""
        return not any(self.nonfinite.values())


def run_trial(tape: Tape, policy: PrecisionPolicy) -> Trial:
    """Replay a step under ``policy``; raises ReplayError where an op cannot be played."""
    with random_state_kept(), torch.no_grad():
        return _Run(tape, SoloPlayer(tape, policy)).trial()


def run_to_update(tape: Tape, policy: PrecisionPolicy) -> Trial:
    """Replay a step under ``policy`` and keep what the optimizer did to each parameter."""
    with random_state_kept(), torch.no_grad():
        run = _Run(tape, SoloPlayer(tape, policy))
        trial = run.trial()
        trial.updates = run.updates()
        return trial


def run_on(player: SoloPlayer) -> Trial:
    """Replay a player's step; the caller keeps the random state."""
    return _Run(player.tape, player).trial()


def run_with(player: SoloPlayer) -> Trial:
    """Replay a step by a player of its own kind; raises ReplayError as ``run_trial`` does."""
    with random_state_kept(), torch.no_grad():
        return _Run(player.tape, player).trial()


def run_disturbed(tape: Tape, format_name: str) -> Trial:
    """Replay a step in fp32 with random errors of the size of a format's rounding."""
    with random_state_kept(), torch.no_grad():
        return _Run(tape, NoisyPlayer(tape, format_name)).trial()


def run_narrow(tape: Tape, format_name: str, scale_factor: float = 1.0) -> Trial:
    """Replay a step as CUDA's autocast would run it in ``format_name``."""
    with random_state_kept(), torch.no_grad():
        return _Run(tape, NarrowPlayer(tape, format_name, scale_factor)).trial()


def loss_at(tape: Tape, weights: dict[str, Tensor]) -> float | None:
    """Return the step's loss in fp32 with other values of the named parameters.

    ``weights`` maps parameter names to float32 tensors in the shape of the parameter's widest
    view. Nothing behind the loss is played.
    """
    with random_state_kept(), torch.no_grad():
        return _Run(tape, SoloPlayer(tape, FP32)).forward_with(weights)


class _Run:
    def __init__(self, tape: Tape, player: SoloPlayer) -> None:
        self._tape, self._policy = tape, player.policy
        self._player = player
        self._producers = producers_of(tape)
        self._bad: set[int] = set()
        self._given_bad: set[int] = set()  # leaves that hold inf or NaN from the start
        self._looked_at: set[int] = set()
        self._spent = spent(tape)
        self._marked = {m.index for m in tape.losses}
        self._trial = Trial(player.policy)
        self._losses: list[float] = []

    def trial(self) -> Trial:
        end = self._tape.backward_ends[-1] if self._tape.backward_ends else len(self._tape.ops)
        for call in self._tape.ops:
            if call.index == end:
                self._take_gradients()
            self._read_losses(call.index)
            self._look_at_leaves(call)
            self._player.play(call)
            self._look_at(call)
            for number in self._spent.get(call.index, ()):
                self._player.env.drop(number)
        if end >= len(self._tape.ops):
            self._take_gradients()
        self._read_losses(len(self._tape.ops))
        self._take_state()
        return self._trial

    def updates(self) -> dict[str, Tensor]:
        """Return the change of every parameter that the step wrote, once it is played."""
        before, found = parameter_values(self._tape), {}
        for name, number in parameter_numbers(self._tape).items():
            ref = self._producers.widest_view(number)
            if ref is not None and self._producers.writers(number) and name in before:
                after = self._player.env.tensor(ref)
                start = before[name].to(after.dtype).float()  # as this policy stores it
                found[name] = after.float() - start
        return found

    def forward_with(self, weights: dict[str, Tensor]) -> float | None:
        for name, number in parameter_numbers(self._tape).items():
            ref = self._producers.widest_view(number)
            if name in weights and ref is not None:
                dtype = torch_dtype(ref.dtype)
                self._player.env.override(number, weights[name], ref, dtype)
        last = max((m.index for m in self._tape.losses), default=-1)
        leading = _leading_to_losses(self._tape)
        for call in self._tape.ops[: last + 1]:
            self._read_losses(call.index)
            if call.index in leading:
                self._player.play(call)
        self._read_losses(last + 1)
        return sum(self._losses) if self._losses else None

    def _read_losses(self, index: int) -> None:
        if index not in self._marked:
            return
        for mark in self._tape.losses:
            if mark.index == index and self._player.env.has(mark.ref.storage):
                self._losses.append(read_loss(self._player, mark))
                self._trial.loss = sum(self._losses)
                bad = sum(x - x != 0 for x in self._losses)
                self._trial.nonfinite["loss"] = bad

    def _look_at_leaves(self, call: OpCall) -> None:
        """Note what is not finite from the start: a mask, weights that are lost already."""
        for ref in refs_in((call.args, call.kwargs)):
            if ref.storage in self._tape.leaves and ref.storage not in self._looked_at:
                self._looked_at.add(ref.storage)
                if is_float_ref(ref) and nonfinite_code(self._player.env.tensor(ref)):
                    self._bad.add(ref.storage)
                    self._given_bad.add(ref.storage)  # spoilt by an earlier step, not by this one

    def _look_at(self, call: OpCall) -> None:
        """Note births: non-finite outputs of ops none of whose inputs was."""
        if is_uninitialised(call.op):
            return
        outs = [r for r in outputs_of(call) if is_float_ref(r) and self._player.env.has(r.storage)]
        inputs_bad = any(r.storage in self._bad for r in refs_in((call.args, call.kwargs)))
        codes = {r.storage: nonfinite_code(self._player.env.tensor(r)) for r in outs}
        worst = {n for n, code in codes.items() if code}
        if worst:
            self._trial.nonfinite_ops += 1
            if not inputs_bad and not has_infinite(call):
                self._trial.births.append(call.site)
        elif self._policy.keep and call.site.phase in _BEFORE_BACKWARD:
            self._note_if_near(call, [self._player.env.tensor(r) for r in outs])
        self._bad |= worst
        self._bad -= set(codes) - worst

    def _note_if_near(self, call: OpCall, results: list[Tensor]) -> None:
        """A place that the next batch may push over the edge belongs on a keep-list too."""
        half = [t for t in results if t.dtype is torch.float16 and t.numel()]
        if any(float(t.abs().max()) >= NEAR for t in half):
            self._trial.near.append(call.site)

    def _take_gradients(self) -> None:
        bad = 0
        for number, name in self._tape.gradients.items():
            ref = self._producers.widest_view(number)
            if ref is None or not self._player.env.has(number):
                continue
            value = self._player.gradient(ref)
            if is_float(value) and not value.is_complex():
                bad += int((~torch.isfinite(value)).sum())
                scaled = value.to(torch.float32, copy=True)
                self._trial.gradients[name] = scaled.div_(self._policy.scale_factor)
        self._trial.nonfinite["gradients"] = bad

    def _take_state(self) -> None:
        for number, leaf in self._tape.leaves.items():
            sink = "parameters" if leaf.is_parameter else "buffers" if leaf.is_buffer else None
            ref = self._producers.widest_view(number)
            if sink is None or ref is None or not self._producers.writers(number):
                continue
            value = self._player.env.tensor(ref)
            if is_float(value) and number not in self._given_bad:
                bad = int((~torch.isfinite(value)).sum())
                self._trial.nonfinite[sink] = self._trial.nonfinite.get(sink, 0) + bad


def _leading_to_losses(tape: Tape) -> set[int]:
    """Return the ops that the losses come from: of backward only what a penalty is made of."""
    wanted: set[int] = set()
    marks = {m.index: m.ref.storage for m in tape.losses}
    found = set()
    for call in reversed(tape.ops[: max(marks, default=-1) + 1]):
        if not wanted.isdisjoint(writes(call)):
            found.add(call.index)
            wanted.update(r.storage for r in refs_in((call.args, call.kwargs)))
        if call.index in marks:
            wanted.add(marks[call.index])
    return found
