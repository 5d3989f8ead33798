"""Owner of a recording: runs the mode and the hooks, keeps the rolling tape, hands tapes over.

Must not know what a tape means; ``on_tape`` decides (``pipeline``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fp16doctor.record import own
from fp16doctor.record.bounds import COPY_CAP, Bounds
from fp16doctor.record.compiled import WITHOUT, compiled_frames
from fp16doctor.record.fork import leave_when_forked
from fp16doctor.record.loss_watch import LossWatch
from fp16doctor.record.module_paths import ModulePaths
from fp16doctor.record.op_tap import OpTap
from fp16doctor.record.quiet import Quiet
from fp16doctor.record.roll import Raised, Roll
from fp16doctor.record.scaler_watch import ScalerWatch
from fp16doctor.record.simulation import Simulation
from fp16doctor.record.source_lines import SourceLines
from fp16doctor.record.split import carry_over
from fp16doctor.record.step_book import StepBook
from fp16doctor.record.steps import StepState
from fp16doctor.record.survey import Survey
from fp16doctor.record.survey_plan import SurveyPlan
from fp16doctor.record.tape_mode import TapeMode
from fp16doctor.record.tape_switch import TapeSwitch
from fp16doctor.record.usage.book import UsageBook
from fp16doctor.record.whereabouts import Whereabouts
from fp16doctor.schema.recording import Caution

OnTape = Callable[["Recorder", Roll], None]


class Recorder:
    """Watches one thread between ``start`` and ``stop``."""

    def __init__(
        self,
        lines: SourceLines,
        on_tape: OnTape,
        before_step: Callable[[int], None],
        *,
        plan: SurveyPlan | None = None,
        wants_tape: Callable[[int], bool] = lambda step: True,
    ) -> None:
        self.lines = lines
        self.book = StepBook()
        self.steps = StepState(
            lambda: self._guarded(self._optimizer_begins),
            lambda: self._guarded(self.book.attempted, self),
        )
        self.modules = ModulePaths(
            self._root_called, lambda *seen: self.survey.hooks.left(*seen), self._guarded
        )
        self.survey = Survey(plan or SurveyPlan(), self.modules, self.caution)
        self.cautions: dict[str, Caution] = {}
        self.last_raise: Raised | None = None
        self.stopping = False  # no more ops will come
        self.roll = Roll(step=0, copy_cap=COPY_CAP)
        self.n_steps = 0
        self.devices: set[torch.device] = set()
        self.simulation = Simulation()
        self.bounds = Bounds(self)
        self._on_tape, self._before_step = on_tape, before_step
        self._wants_tape = wants_tape
        self._where = Whereabouts(
            lines,
            self.modules,
            self.steps,
            backward_began=lambda again: self.book.backward_began(self, again),
            backward_ended=lambda: self.book.backward_ended(self),
            forward_began=self._forward_outside_modules,
        )
        tap = OpTap(self, self._where)
        self.ops_by_dtype = tap.ops_by_dtype
        self.switch = TapeSwitch(TapeMode(tap.call))
        self.usage = UsageBook(self)
        self._parts: tuple[Any, ...] = (
            *(self.modules, self.steps, self.usage, self.survey, LossWatch(self._loss)),
            ScalerWatch(self.survey.before_update, self._scaler_updated),
        )
        self._alive = False
        self._paused = 0
        self._called_before = False
        self._compiled = 0  # frames that torch.compile had compiled before
        self._thread = 0
        leave_when_forked(self)

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin watching the calling thread."""
        self._thread = threading.get_ident()
        self._compiled = compiled_frames()
        self.survey.begin(0)
        first = self._wants_tape(0)
        self.attach()
        self._alive = True
        self.switch.start(wanted=first)

    def stop(self) -> None:
        """Stop watching, hand over what was recorded of the last step, leave nothing behind."""
        self.switch.stop()
        self.stopping = True
        if self._alive and (self.steps.attempted or self.roll.ops):
            self._guarded(self._close)
        self.detach()
        self.survey.drop()
        self._note_compiled()
        self._alive = False
        self.modules.begin()
        self.roll = self._new_roll()

    def _note_compiled(self) -> None:
        n = compiled_frames() - self._compiled
        if n > 0:
            self.caution(
                "compiled-regions",
                f"torch.compile compiled {n} functions; fused code in them is not seen; {WITHOUT}",
            )

    def leave(self) -> None:
        """Stop in a process forked off the watched one: nothing is handed over."""
        if self._alive:
            self._alive = False
            self.detach()

    def attach(self) -> None:
        """Put the global hooks on."""
        for part in self._parts:
            part.attach()

    def detach(self) -> None:
        """Take them off again; what was seen stays."""
        for part in self._parts:
            part.detach()

    def _guarded(self, action: Callable[..., Any], *args: Any) -> Any:
        """Run a part of ours; if it breaks, note it and stop recording: the run goes on."""
        if not self._alive:
            return None
        try:
            return action(*args)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the script
            self.broken(error)
            return None

    def broken(self, error: Exception) -> None:
        """Note a fault of ours and stop recording: the run goes on."""
        self._alive = False
        self.roll = self._new_roll()  # let go of what it held
        self.caution(
            "recorder-stopped",
            f"recording stopped in step {self.n_steps}: {type(error).__name__}: {error}",
        )

    def _new_roll(self) -> Roll:
        return Roll(step=self.n_steps, copy_cap=COPY_CAP)

    def caution(self, slug: str, message: str) -> None:
        """Note once what could not be observed."""
        self.cautions.setdefault(slug, Caution(slug, message))

    def quiet(self) -> Quiet:
        """Return a context in which ops are neither recorded nor seen by any mode."""
        return Quiet(self._pause)

    def hand_over(self) -> None:
        """Give the tape of the open step to whoever examines it."""
        self._on_tape(self, self.roll)

    @property
    def truncated(self) -> bool:
        """Whether the rest of the open step is not recorded."""
        return self.bounds.truncated

    @property
    def recording(self) -> bool:
        """Whether ops of the watched thread are recorded now."""
        return self._alive and not self._paused and self.switch.on

    @property
    def deaf(self) -> bool:
        """Ops are let through unseen."""
        return not self._alive or self._paused > 0

    def _pause(self, change: int) -> None:
        self._paused += change

    # -- steps -----------------------------------------------------------------------------------

    def _root_called(self, module: nn.Module, args: Any) -> None:
        if self._alive and not self._paused and threading.get_ident() == self._thread:
            self._guarded(self._enter_root, module, args)
            self.usage.model_called()
            self._before_step(self.n_steps)

    def _enter_root(self, module: nn.Module, args: Any) -> None:
        steps = self.steps
        if torch._C._current_graph_task_id() != -1:
            return  # checkpoint recompute
        if steps.in_backward:
            self._where.end_backward()
        self.last_raise = None  # the script went on
        self.book.forward_again(self)
        if steps.may_begin or not self._called_before or self.bounds.idle_too_long():
            self.new_step(module)
        self._called_before = True
        self.survey.root_called()
        if own.is_grad_enabled():
            self._forward_began()
            self.book.batch_of(args)
            if not self.modules.loss_allowed:
                self.modules.loss_allowed = any(p.requires_grad for p in module.parameters())

    def _optimizer_begins(self) -> None:
        self.modules.unwind_if_idle()
        self.book.optimizer_begins(self)

    def _forward_outside_modules(self) -> None:
        if self.steps.may_begin:
            self.new_step(None)
        self._forward_began()
        self._before_step(self.n_steps)

    def _forward_began(self) -> None:
        self.steps.running, self.steps.backward_done = True, False
        if self.book.marks.forward is None:
            self.book.marks.forward = len(self.roll.ops)

    def new_step(self, root: nn.Module | None) -> None:
        """Close the open step if it trained or shows something; open the next."""
        old, attempt = self.roll, self.book.marks.attempt
        new = self._new_roll()
        first = self.bounds.last_call if attempt is None else attempt
        if not self.bounds.too_heavy:
            carry_over(old, new, first, root if attempt is None else None)
        if self.steps.attempted or old.n_flagged or old.pending:
            self._close()
        else:
            self.survey.drop()
        self.switch.set(wanted=self._wants_tape(self.n_steps))
        self.survey.begin(self.n_steps)
        if not self.switch.on:
            new = self._new_roll()  # what was carried over led to a tape
        self.last_raise = None  # it belonged to the step before
        new.step = self.n_steps
        new.n_flagged = sum(op.code > 0 for op in new.ops)
        self.roll = new
        self.steps.begin()
        self.book.begin()
        self.usage.begin()
        self.modules.begin()
        self._where.clear()
        self.bounds.begin()

    def step_ends(self) -> None:
        """The script says that its step is over; what comes next belongs to another."""
        if self._alive and not self.steps.attempted:
            self.survey.before_update()
            self._guarded(self.book.attempted, self)

    def _loss(self, loss: Tensor, gradient: Tensor | None) -> None:
        if not self._alive or self._paused:
            return
        if threading.get_ident() != self._thread:
            self.steps.backwards_elsewhere += 1
            return
        if gradient is not None:
            with self.quiet():
                self._guarded(self.book.given, loss, gradient, self.switch.on)
        elif not self.switch.on:
            self.book.loss(loss)

    def _scaler_updated(self, scale: Tensor, found: Tensor | None, following: Tensor) -> None:
        if self._alive and not self.switch.on:
            self.book.updated(scale, found, following)
            self.book.attempted(self)

    def _close(self) -> None:
        """Book the step and hand its tape to whoever examines it."""
        if self.steps.in_backward:
            self._where.end_backward()
        self.devices.update(leaf.storage.device for leaf in self.roll.leaves.values())
        with self.quiet():
            self.book.finish(self)
            if self.switch.on or self.roll.ops:
                self.usage.close()
            if not self.bounds.handed_over:
                self.hand_over()
        if self.steps.attempted:
            self.n_steps += 1
