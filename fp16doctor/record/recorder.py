"""Owner of a recording: runs the mode and the hooks, keeps the rolling tape, hands tapes over.

Must not know what a tape means; ``on_tape`` decides (``pipeline``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fp16doctor.record import op_writer
from fp16doctor.record.module_paths import ModulePaths
from fp16doctor.record.op_info import OpInfo, op_info
from fp16doctor.record.quiet import Quiet
from fp16doctor.record.roll import RawOp, Roll
from fp16doctor.record.source_lines import SourceLines
from fp16doctor.record.split import carry_over
from fp16doctor.record.step_book import StepBook
from fp16doctor.record.steps import StepState
from fp16doctor.record.tape_mode import TapeMode
from fp16doctor.record.whereabouts import Whereabouts
from fp16doctor.schema.recording import Caution

MAX_OPS = 150_000  # records of one step; about 1 KiB each
MAX_IDLE_OPS = 20_000  # records kept while no backward has run: evaluation, set-up
COPY_CAP = 512 * 2**20  # bytes of copies made before writes, per step

OnTape = Callable[["Recorder", Roll], None]


class Recorder:
    """Watches one thread between ``start`` and ``stop``."""

    def __init__(
        self, lines: SourceLines, on_tape: OnTape, before_step: Callable[[int], None]
    ) -> None:
        self.lines = lines
        self.book = StepBook()
        self.steps = StepState(
            lambda: self.book.optimizer_begins(self), lambda: self.book.attempted(self)
        )
        self.modules = ModulePaths(self._root_called)
        self.cautions: dict[str, Caution] = {}
        self.last_raise: tuple[BaseException, RawOp, int] | None = None
        self.roll = Roll(step=0, copy_cap=COPY_CAP)
        self.n_steps = 0
        self.ops_by_dtype: dict[torch.dtype, int] = {}
        self.devices: set[torch.device] = set()
        self.truncated = False  # the rest of the open step is not recorded
        self._on_tape, self._before_step = on_tape, before_step
        self._mode = TapeMode(self._call)
        self._where = Whereabouts(
            lines,
            self.modules,
            self.steps,
            backward_began=lambda: self.book.backward_began(self),
            backward_ended=lambda: self.book.backward_ended(self),
            forward_began=self._forward_outside_modules,
        )
        self._alive = False
        self._paused = 0
        self._called_before = False
        self._thread = 0

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin watching the calling thread."""
        self._thread = threading.get_ident()
        self.modules.attach()
        self.steps.attach()
        self._alive = True
        self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def stop(self) -> None:
        """Stop watching, hand over what was recorded of the last step, leave nothing behind."""
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.modules.detach()
        self.steps.detach()
        if self._alive:
            self._guarded(self._close)
        self._alive = False

    def _guarded(self, action: Callable[..., Any], *args: Any) -> Any:
        """Run a part of ours; if it breaks, note it and stop recording: the run goes on."""
        try:
            return action(*args)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the script
            self._alive = False
            self.caution(
                "recorder-stopped",
                f"recording stopped in step {self.n_steps}: {type(error).__name__}: {error}",
            )
            return None

    def caution(self, slug: str, message: str) -> None:
        """Note once what could not be observed."""
        self.cautions.setdefault(slug, Caution(slug, message))

    def quiet(self) -> Quiet:
        """Return a context in which ops are neither recorded nor seen by any mode."""
        return Quiet(self._pause)

    def _pause(self, change: int) -> None:
        self._paused += change

    # -- one op ----------------------------------------------------------------------------------

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen call and record it."""
        info = op_info(func)
        if info.skip or not self._alive or self._paused:
            return func(*args, **kwargs)
        op = self._guarded(self._before, func, info, args, kwargs)
        try:
            out = func(*args, **kwargs)
        except BaseException as error:
            if op is not None:
                self.last_raise = (error, op, self.roll.step)
            raise
        if op is not None:
            self._guarded(self._after, op, args, kwargs, out)
        return out

    def _before(
        self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> RawOp | None:
        where = self._where.now()
        roll = self.roll
        if info.alias:
            if args and isinstance(args[0], Tensor):
                roll.touch(args[0])
            return None
        if not self.truncated and len(roll.ops) >= MAX_OPS:
            self._truncate("step-too-long", f"a step has more than {MAX_OPS} ops")
        written = op_writer.written_tensors(info, args, kwargs)
        if not self.truncated and written:
            self._protect(written)
        if self.truncated:
            return None
        op = op_writer.begin(roll, func, info, args, kwargs, where, written)
        if written:
            op.written = roll.numbers_of(written)
            self.book.written(self, written)
        self.book.before(op, args)
        return op

    def _after(self, op: RawOp, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        pairs = op_writer.finish(self.roll, op, args, kwargs, out)
        if pairs:
            tensor = pairs[0][0]
            dtype = tensor.dtype
            self.ops_by_dtype[dtype] = self.ops_by_dtype.get(dtype, 0) + 1
            self.devices.add(tensor.device)
        self.book.after(self, op, args)

    def _protect(self, written: list[Tensor]) -> None:
        """Copy leaves before their first write; where that is too much, examine at once."""
        if all(self.roll.protect(t) for t in written):
            return
        self._truncate("copies-too-large", f"over {COPY_CAP >> 20} MiB are overwritten in a step")
        with self.quiet():
            self.roll.read_flags([])
            self._on_tape(self, self.roll)

    def _truncate(self, slug: str, message: str) -> None:
        self.truncated = True
        self.caution(slug, f"{message}; the rest of step {self.roll.step} was not recorded")

    # -- steps -----------------------------------------------------------------------------------

    def _root_called(self, module: nn.Module) -> None:
        if self._alive and not self._paused and threading.get_ident() == self._thread:
            self._guarded(self._enter_root, module)
            self._before_step(self.n_steps)

    def _enter_root(self, module: nn.Module) -> None:
        steps = self.steps
        if steps.in_backward:
            if torch._C._current_graph_task_id() != -1:
                return  # checkpoint recompute
            self._where.end_backward()
        if steps.may_begin or not self._called_before or self._idle_too_long():
            self._new_step(module)
        self._called_before = True
        if torch.is_grad_enabled():
            self._forward_began()
            if not self.modules.loss_allowed:
                self.modules.loss_allowed = any(p.requires_grad for p in module.parameters())

    def _forward_outside_modules(self) -> None:
        if self.steps.may_begin:
            self._new_step(None)
        self._forward_began()

    def _forward_began(self) -> None:
        self.steps.running, self.steps.backward_done = True, False
        if self.book.marks.forward is None:
            self.book.marks.forward = len(self.roll.ops)

    def _idle_too_long(self) -> bool:
        return len(self.roll.ops) > MAX_IDLE_OPS and not self.book.marks.backward_ends

    def _new_step(self, root: nn.Module | None) -> None:
        """Close the open step if it trained or shows something; open the next."""
        old, attempt = self.roll, self.book.marks.attempt
        new = Roll(step=0, copy_cap=COPY_CAP)
        taboo = set(_storage_keys(root)) if root is not None and attempt is None else set()
        carry_over(old, new, attempt or 0, taboo)
        if self.steps.attempted or old.n_flagged:
            self._close()
        new.step = self.n_steps
        self.roll = new
        self.steps.begin()
        self.book.begin()
        self.modules.loss_allowed = False
        self._where.clear()
        self.truncated = False

    def _close(self) -> None:
        """Book the step and hand its tape to whoever examines it."""
        if self.steps.in_backward:
            self._where.end_backward()
        with self.quiet():
            self.book.finish(self)
            self._on_tape(self, self.roll)
        if self.steps.attempted:
            self.n_steps += 1


def _storage_keys(root: nn.Module) -> list[int]:
    keys = []
    for t in (*root.parameters(), *root.buffers()):
        try:
            keys.append(t.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError, ValueError):
            continue
    return keys
