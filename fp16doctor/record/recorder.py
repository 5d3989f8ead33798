"""Owner of a recording: runs the mode and the hooks, keeps the rolling tape, hands tapes over.

Must not know what a tape means; ``on_tape`` decides (``pipeline``).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from fp16doctor.record.module_paths import ModuleEntry, ModulePaths
from fp16doctor.record.op_info import OpInfo, op_info
from fp16doctor.record.roll import RawOp, Roll
from fp16doctor.record.source_lines import SourceLines
from fp16doctor.record.split import carry_over
from fp16doctor.record.steps import StepState, grad_needed
from fp16doctor.record.step_book import StepBook
from fp16doctor.record.tape_mode import TapeMode
from fp16doctor.schema.location import Phase
from fp16doctor.schema.recording import Caution

MAX_OPS = 150_000  # records of one step; about 1 KiB each
MAX_IDLE_OPS = 20_000  # records kept while no backward has run: evaluation, set-up
COPY_CAP = 512 * 2**20  # bytes of copies made before writes, per step

# A site as recorded: (line, caller, module, phase); the builder turns it into an OpSite.
Where = tuple[Any, Any, ModuleEntry | None, Phase]
OnTape = Callable[["Recorder", Roll], None]


class Recorder:
    """Watches one thread between ``start`` and ``stop``."""

    def __init__(self, lines: SourceLines, on_tape: OnTape, before_step: Callable[[int], None]):
        self.lines = lines
        self.steps = StepState(lambda: self.book.attempted(self))
        self.modules = ModulePaths(self._root_called)
        self.book = StepBook()
        self.cautions: dict[str, Caution] = {}
        self.last_raise: tuple[BaseException, RawOp, int] | None = None
        self.roll = Roll(step=0, copy_cap=COPY_CAP)
        self.n_steps = 0
        self.ops_by_dtype: dict[torch.dtype, int] = {}
        self._devices: set[torch.device] = set()
        self._on_tape, self._before_step = on_tape, before_step
        self._mode = TapeMode(self.call)
        self._alive = False
        self._paused = 0
        self._forward_sites: dict[int, Where] = {}
        self._backward_site: Where | None = None
        self._truncated = False
        self._called_before = False
        self._thread = 0

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin watching the calling thread."""
        self._thread = threading.get_ident()
        self.modules.attach()
        self.steps.attach()
        self._alive = True
        self._mode.__enter__()

    def stop(self) -> None:
        """Stop watching, hand over what was recorded of the last step, leave nothing behind."""
        self._mode.__exit__(None, None, None)
        self.modules.detach()
        self.steps.detach()
        if self._alive:
            self._guarded(self._close)
        self._alive = False

    def _guarded(self, action: Callable[..., Any], *args: Any) -> Any:
        """Run a part of ours; if it breaks, note it and stop recording: the run goes on."""
        try:
            return action(*args)
        except Exception as error:
            self._alive = False
            self.caution(
                "recorder-stopped",
                f"recording stopped in step {self.n_steps}: {type(error).__name__}: {error}",
            )
            return None

    def caution(self, slug: str, message: str) -> None:
        """Note once what could not be observed."""
        self.cautions.setdefault(slug, Caution(slug, message))

    # -- one op ----------------------------------------------------------------------------------

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
        where = self._where(args)
        roll = self.roll
        if info.alias:
            for a in args[:1]:
                if isinstance(a, Tensor):
                    roll.touch(a)
            return None
        if self._truncated or len(roll.ops) >= MAX_OPS:
            if not self._truncated:
                self._over("step-too-long", f"a step has more than {MAX_OPS} ops")
            return None
        written = self._written(info, args, kwargs)
        roll.held = False
        if info.overwrites:
            for tensor in written:
                roll.overwritten(tensor)
        ref_args = [self._encode(a) for a in args]
        ref_kwargs = {k: self._encode(v) for k, v in kwargs.items()} if kwargs else {}
        op = RawOp(func, info, ref_args, ref_kwargs, None, where, None, None, ())
        if roll.bad:
            op.reads_bad = self._worst_read(ref_args, written)
        if written:
            op.written = self._protect(written)
            if self._truncated:
                return None
        self.book.before(op, args)
        if info.random:
            op.rng, op.generator_key = _random_state(args, kwargs)
        return op

    def _after(self, op: RawOp, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        roll, info = self.roll, op.info
        screened: list[tuple[Tensor, Any]] = []
        op.outputs = self._encode_out(out, info.uninitialised, screened)
        if op.written:
            roll.written(op.written)
        if roll.held or info.higher_order:
            roll.unknown(op)
        if op.written:
            if out is None or not screened:
                for a in (*args, *kwargs.values()):
                    self._collect_written(a, op.written, screened)
        if info.screened and screened:
            roll.screen(op, screened)
            dtype = screened[0][0].dtype
            if screened[0][0].device not in self._devices:
                self._devices.add(screened[0][0].device)
            self.ops_by_dtype[dtype] = self.ops_by_dtype.get(dtype, 0) + 1
        roll.ops.append(op)
        self.book.after(self, op, args)

    # -- encoding --------------------------------------------------------------------------------

    def _encode(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.roll.read(value)
        if isinstance(value, (list, tuple)):
            return [self._encode(v) for v in value]
        return value

    def _encode_out(
        self, value: Any, uninitialised: bool, screened: list[tuple[Tensor, Any]]
    ) -> Any:
        if isinstance(value, Tensor):
            ref = self.roll.made(value, uninitialised=uninitialised)
            if value.dtype.is_floating_point or value.dtype.is_complex:
                screened.append((value, ref))
            return ref
        if isinstance(value, (list, tuple)):
            return [self._encode_out(v, uninitialised, screened) for v in value]
        return value

    def _collect_written(
        self, value: Any, written: tuple[int, ...], screened: list[tuple[Tensor, Any]]
    ) -> None:
        if isinstance(value, Tensor):
            ref = self.roll.read(value)
            if type(ref) is tuple and ref[0] in written and value.dtype.is_floating_point:
                screened.append((value, ref))
        elif isinstance(value, (list, tuple)):
            for v in value:
                self._collect_written(v, written, screened)

    def _written(self, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        if not info.written_args and not info.written_kwargs:
            return []
        values = [args[i] for i in info.written_args if i < len(args)]
        values += [kwargs[k] for k in info.written_kwargs if k in kwargs]
        flat: list[Tensor] = []
        for v in values:
            flat.extend(v if isinstance(v, (list, tuple)) else [v])
        return [t for t in flat if isinstance(t, Tensor)]

    def _protect(self, written: list[Tensor]) -> tuple[int, ...]:
        roll, numbers = self.roll, []
        for tensor in written:
            ref = roll.made(tensor, uninitialised=False)
            if type(ref) is not tuple:
                continue
            numbers.append(ref[0])
            if not roll.protect(ref[0]):
                self._over_cap()
                break
        self.book.written(self, written)
        return tuple(numbers)

    def _worst_read(self, refs: list[Any], written: list[Tensor]) -> int:
        bad, worst = self.roll.bad, 0
        stack = list(refs)
        while stack:
            r = stack.pop()
            if type(r) is tuple:
                worst = max(worst, bad.get(r[0], 0))
            elif type(r) is list:
                stack.extend(r)
        return worst

    # -- where -----------------------------------------------------------------------------------

    def _where(self, args: tuple[Any, ...]) -> Where:
        node = torch._C._current_autograd_node()
        stack = self.modules.stack
        steps = self.steps
        if node is not None:
            if not steps.in_backward:
                self._begin_backward()
            if len(stack) <= steps.backward_depth:
                return self._where_backward(node)
        elif steps.in_backward:
            self._end_backward()
        if stack:
            module = stack[-1]
            phase = Phase.LOSS if module.is_loss else Phase.FORWARD
        else:
            self._maybe_functional_step(args)
            module, phase = None, steps.phase_outside()
        source, caller = self.lines.key(sys._getframe(4))
        where = (source, caller, module, phase)
        self._forward_sites.setdefault(torch.autograd._get_sequence_nr() - 1, where)
        return where

    def _where_backward(self, node: Any) -> Where:
        site = self._forward_sites.get(node._sequence_nr())
        if site is None:
            site = self._backward_site or self._call_site()
            where = (site[0], site[1], None, Phase.BACKWARD)
        else:
            where = (site[0], site[1], site[2], Phase.BACKWARD)
        if torch.is_grad_enabled():  # double backward: new nodes inherit the site
            self._forward_sites.setdefault(torch.autograd._get_sequence_nr() - 1, where)
        return where

    def _call_site(self) -> Where:
        source, caller = self.lines.key(sys._getframe(5))
        return (source, caller, None, Phase.BACKWARD)

    def _begin_backward(self) -> None:
        self.steps.in_backward = True
        self.steps.running = True
        self.steps.backward_depth = len(self.modules.stack)
        self._backward_site = self._call_site()
        self.book.backward_began(self)

    def _end_backward(self) -> None:
        self.steps.in_backward = False
        self.steps.backward_done = True
        self.book.backward_ended(self)

    def _maybe_functional_step(self, args: tuple[Any, ...]) -> None:
        steps = self.steps
        if steps.optimizer_depth or (steps.running and not steps.backward_done):
            return
        if grad_needed(args):
            if steps.may_begin:
                self._new_step(None)
            self._forward_began()

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
            self._end_backward()
        if steps.may_begin or not self._called_before or self._idle_too_long():
            self._new_step(module)
        self._called_before = True
        if torch.is_grad_enabled():
            self._forward_began()
            self.modules.loss_allowed = self.modules.loss_allowed or _trains(module)

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
        self._forward_sites.clear()
        self._truncated = False

    def _close(self) -> None:
        """Book the step and hand its tape to whoever examines it."""
        if self.steps.in_backward:
            self._end_backward()
        with self.quiet():
            self.book.finish(self)
            self._on_tape(self, self.roll)
        if self.steps.attempted:
            self.n_steps += 1

    def _over(self, slug: str, message: str) -> None:
        self._truncated = True
        self.caution(slug, f"{message}; the rest of step {self.roll.step} was not recorded")

    def _over_cap(self) -> None:
        """The copies needed to go on would be too large: examine now, before the write."""
        self._over("copies-too-large", f"more than {COPY_CAP >> 20} MiB are overwritten in a step")
        with self.quiet():
            self.roll.read_flags([])
            self._on_tape(self, self.roll)

    def quiet(self) -> Any:
        """Return a context in which ops are neither recorded nor seen by any mode."""
        return _Quiet(self)

    @property
    def devices(self) -> set[str]:
        """Devices that floating-point ops wrote to."""
        return {str(d) for d in self._devices}

    @property
    def truncated(self) -> bool:
        """The rest of the open step is not recorded."""
        return self._truncated


class _Quiet:
    """No modes, no grad, no autocast, no recording."""

    def __init__(self, owner: Recorder) -> None:
        self._owner = owner
        self._contexts = (_disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast())

    def __enter__(self) -> None:
        self._owner._paused += 1
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *exc: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*exc)
        self._owner._paused -= 1


def _trains(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


def _storage_keys(root: nn.Module) -> list[int]:
    keys = []
    for t in (*root.parameters(), *root.buffers()):
        try:
            keys.append(t.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError, ValueError):
            continue
    return keys


def _random_state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, str | None]:
    generator = kwargs.get("generator")
    if generator is None:
        generator = next((a for a in args if isinstance(a, torch.Generator)), None)
    if generator is not None:
        return generator.get_state(), str(generator.device)
    tensor = next((a for a in args if isinstance(a, Tensor)), None)
    if tensor is not None and tensor.device.type == "cuda":
        index = tensor.device.index or 0
        return torch.cuda.default_generators[index].get_state(), None
    return torch.default_generator.get_state(), None
