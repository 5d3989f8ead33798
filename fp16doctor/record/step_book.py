"""What happened in each step beside the ops: losses, gradients, loss scale, skips.

Must not know how tapes are written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fp16doctor.record.children import started_processes
from fp16doctor.record.hand_skip import left_out
from fp16doctor.record.loop_counts import Counts, LoopCounts
from fp16doctor.record.op_info import LOSS_SEED, OpInfo
from fp16doctor.record.ranks import joined, launched_as
from fp16doctor.schema.recording import StepInfo

if TYPE_CHECKING:
    from fp16doctor.record.recorder import Recorder
    from fp16doctor.record.roll import RawRef


PASSES_BY_HAND = 3  # backwards with a write by hand behind each, beside an unused optimizer


@dataclass(slots=True)
class StepMarks:
    """Positions on the tape of one step; an op index counts from the tape's start."""

    losses: list[tuple[int, RawRef]] = field(default_factory=list)  # (op that reads it, reference)
    backward_ends: list[int] = field(default_factory=list)  # first op after each backward
    gradients: dict[int, int] = field(default_factory=dict)  # storage of .grad -> of parameter
    optimizer_at: int | None = None  # first op of the last optimizer step
    attempt: int | None = None  # first op after the last optimizer attempt
    forward: int | None = None  # first op of the first grad-enabled forward
    batch: int | None = None  # samples: leading size of the first tensor the model was given
    loops: Counts = ()  # what the script's loops count to
    left_out: bool = False  # the script did not take the step: its gradients were not finite


def _is_one_weight(gradient: Tensor) -> bool:
    """Tell whether all elements are equal; reads the device where they do not share memory."""
    if gradient.numel() == 0:
        return False
    flat = gradient.detach()
    return not any(flat.stride()) or bool((flat == flat.reshape(-1)[0]).all())


class StepBook:
    """Marks of the open step and the facts of the closed ones."""

    def __init__(self) -> None:
        self.steps: list[StepInfo] = []
        self.marks = StepMarks()
        self._seeds: list[tuple[int, RawRef | None, Tensor]] = []  # of the coming backward
        self._losses: list[Tensor] = []
        self._given: list[Tensor] = []  # losses of the coming backward that have a gradient given
        self._scale: Tensor | None = None
        self._next_scale: Tensor | None = None
        self._found_inf: Tensor | None = None
        self._last_scale: float | None = None
        self._backwards = 0
        self._written_behind: set[int] = set()  # backwards with a write by hand behind them
        self._children = started_processes()
        self._loop_counts = LoopCounts()
        self.ranks = launched_as()  # this process and those that train along

    def begin(self) -> None:
        """Open a new step."""
        self.marks = StepMarks()
        self._seeds, self._losses, self._given = [], [], []
        self._scale = self._next_scale = self._found_inf = None

    def note(self, recorder: Recorder, info: OpInfo, args: tuple[Any, ...], ref: Any) -> None:
        """Note what an op that is about to run says about the step.

        ``ref`` is the reference of its first argument, None where ops are no longer recorded.
        """
        first = args[0]
        if info.name == LOSS_SEED:
            if first.requires_grad and first.numel() == 1 and (ref is None or type(ref) is tuple):
                self._seeds.append((len(recorder.roll.ops), ref, first.detach()))
        else:
            self._scale = first.detach().clone()
            self._found_inf = args[2].detach().clone()
            self._next_scale = first  # read at the end of the step
            self.attempted(recorder)
            self.marks.attempt = len(recorder.roll.ops) + 1

    def loss(self, tensor: Tensor) -> None:
        """Note a loss that backward is called on in a step that is not taped."""
        self._losses.append(tensor.detach().reshape(()))

    def given(self, tensor: Tensor, gradient: Tensor, taped: bool) -> None:
        """Note a loss that backward is about to be called on with ``gradient``: their product.

        On a tape it waits for the backward to begin, which may find a seed and count that. A root
        of more dimensions is a loss where all of it has one weight; else it is one piece of a model
        that is trained in pieces, and the gradient comes from the next piece.
        """
        if tensor.dim() > 1 and not _is_one_weight(gradient):
            return
        into = self._given if taped else self._losses
        into.append((tensor.detach() * gradient.detach()).sum())

    def updated(self, scale: Tensor, found_inf: Tensor | None, following: Tensor) -> None:
        """Note what ``GradScaler.update`` did in a step that is not taped."""
        self._scale, self._found_inf, self._next_scale = scale, found_inf, following

    def optimizer_begins(self, recorder: Recorder) -> None:
        """An optimizer is about to step: the gradients are final."""
        self.marks.optimizer_at = len(recorder.roll.ops)
        self.marks.loops = self._loop_counts.at(sys._getframe(1))

    def batch_of(self, args: Any) -> None:
        """Note how many samples the first model call of the step was given."""
        if self.marks.batch is None:
            sizes = (a.shape[0] for a in args if isinstance(a, Tensor) and a.dim() > 0)
            self.marks.batch = next(sizes, None)

    def attempted(self, recorder: Recorder) -> None:
        """An optimizer step, the scaler's decision about one, or an update by hand is done."""
        recorder.steps.attempted = True
        self.marks.attempt = len(recorder.roll.ops)

    def forward_again(self, recorder: Recorder) -> None:
        """A model is called: where the script has left out the step of the last pass, it is over.

        That device flags may be read for it costs a synchronisation only where they are pending.
        """
        steps, marks = recorder.steps, self.marks
        if steps.attempted or not steps.backward_done or not marks.backward_ends:
            return
        if left_out(recorder.roll, marks.backward_ends[-1], marks.gradients):
            self.attempted(recorder)
            marks.left_out = True

    def written(self, recorder: Recorder, numbers: tuple[int, ...]) -> None:
        """Take a write to a parameter behind backward for an update made by hand."""
        steps = recorder.steps
        if steps.uses_optimizer or steps.in_backward or not steps.backward_done:
            return
        params = recorder.roll.params
        mine = [params[n] for n in numbers if n in params]
        if mine and (steps.updates_by_hand() or self._passes_by(mine)):
            steps.attempted = True
            self.marks.attempt = len(recorder.roll.ops) + 1

    def _passes_by(self, parameters: list[Tensor]) -> bool:
        """Tell whether there is an optimizer that these parameters are not updated by.

        It cannot have stepped where they have no gradient (``torch.autograd.grad``). Else a write
        may be the climb of a two-pass optimizer, whose first step is still to come: so many
        backwards with a write behind each, and no step, are not.
        """
        if all(p.grad is None for p in parameters):
            return True
        self._written_behind.add(self._backwards)
        return len(self._written_behind) >= PASSES_BY_HAND

    def backward_began(self, recorder: Recorder, differentiated_again: bool) -> None:
        """Take the tensors whose ``ones_like`` came last, one behind the other, for the losses.

        A gradient that is itself differentiated (a penalty's) was not taken of the loss. Where the
        script gave the gradient there is no such tensor: what it was given for counts.
        """
        seeds, self._seeds = self._seeds, []
        given, self._given = self._given, []
        if differentiated_again:
            return
        if seeds and seeds[-1][1] is None:  # the tape was cut short; the loss is known all the same
            self._losses.append(seeds[-1][2])
            return
        last = len(recorder.roll.ops) - 1
        roots: list[tuple[int, RawRef | None, Tensor]] = []
        while seeds and seeds[-1][0] == last - len(roots):
            roots.append(seeds.pop())
        for index, ref, loss in reversed(roots):
            if ref is not None:
                self.marks.losses.append((index, ref))
                self._losses.append(loss)
        if not roots:
            self._losses += given

    def backward_ended(self, recorder: Recorder) -> None:
        """Note where the gradients lie."""
        roll = recorder.roll
        self._backwards += 1
        self.marks.backward_ends.append(len(roll.ops))
        for number, parameter in roll.params.items():
            gradient = parameter.grad
            if gradient is None:
                continue
            try:
                found = roll.ids.get(gradient.untyped_storage()._cdata)
            except (NotImplementedError, RuntimeError):
                continue
            if found is not None:
                self.marks.gradients[found] = number

    @property
    def children(self) -> int:
        """Processes that the script has started."""
        return started_processes() - self._children

    def taken(self, recorder: Recorder, parameters: Iterable[Any]) -> None:
        """Note the gradients that an optimizer is about to step on.

        A parameter whose forward ran in an earlier step, a generator's behind its critic's update,
        is not on the tape before the optimizer reads it: backward read a saved copy.
        """
        roll = recorder.roll
        for parameter in parameters:
            gradient: Any = getattr(parameter, "grad", None)
            try:
                found = roll.ids.get(gradient.untyped_storage()._cdata)
                if found is None or found in self.marks.gradients:
                    continue
                roll.touch(parameter)
                self.marks.gradients[found] = roll.ids[parameter.untyped_storage()._cdata]
            except (AttributeError, KeyError, NotImplementedError, RuntimeError):
                continue

    def finish(self, recorder: Recorder) -> None:
        """Read the step's few numbers from the device, with the flags, in one go."""
        self.ranks = joined() or self.ranks  # the group may be gone when the run is summed up
        wanted = [*self._losses, self._scale, self._found_inf, self._next_scale]
        values = [v for v in wanted if v is not None]
        numbers = recorder.roll.read_flags(values + recorder.survey.pending())
        it = iter(n[0] for n in numbers[: len(values)])
        losses = [next(it) for _ in self._losses]
        scale, found, following = (
            None if v is None else next(it)
            for v in (self._scale, self._found_inf, self._next_scale)
        )
        known = scale if scale is not None else self._last_scale
        recorder.survey.close(recorder.n_steps, known or 1.0, numbers[len(values) :])
        if not recorder.steps.attempted:
            return
        self._last_scale = following if following is not None else known
        total = sum(losses) / known if losses and known else (sum(losses) if losses else None)
        roll = recorder.roll
        self.steps.append(
            StepInfo(
                step=roll.step,
                loss=total,
                loss_scale=scale,
                found_inf=None if found is None else found != 0,
                skipped=self.marks.left_out
                or (found is not None and found != 0 and not recorder.steps.updates_despite_inf),
                n_ops=len(roll.ops) - (self.marks.forward or 0),
                n_nonfinite_ops=roll.n_flagged,
                next_loss_scale=following,
                loops=self.marks.loops,
            )
        )
