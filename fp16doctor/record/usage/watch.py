"""Notices calls of GradScaler and of optimizers, and what torch switches off without CUDA.

GradScaler's methods are wrapped on the class while a run is watched, and put back afterwards; the
wrappers pass everything through. Must not know what the calls mean.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from fp16doctor.record.usage.calls import Asked, Attempt, Calls, Scaled
from fp16doctor.record.whereabouts import Where
from fp16doctor.schema.location import Phase

if TYPE_CHECKING:
    from fp16doctor.record.recorder import Recorder


class CallWatch:
    """Fills ``calls``; ``active`` says whether the calling thread is being recorded."""

    def __init__(self, recorder: Recorder, calls: Calls, active: Callable[[], bool]) -> None:
        self._recorder, self._calls, self._active = recorder, calls, active
        self.asked: list[Asked] = []
        self.scaler_off = False
        self._open: list[Attempt] = []
        self._handles: list[Any] = []
        self._put_back: list[Callable[[], None]] = []

    def attach(self) -> None:
        """Put the wrappers and hooks on."""
        self._wrap(torch.amp.GradScaler, "scale", self._scale)
        self._wrap(torch.amp.GradScaler, "step", self._scaler_step)
        common = torch.cuda.amp.common
        self._wrap(common, "amp_definitely_not_available", self._not_available)
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def detach(self) -> None:
        """Take them off."""
        for handle in self._handles:
            handle.remove()
        for restore in self._put_back:
            restore()
        self._handles, self._put_back, self._open = [], [], []

    def begin(self) -> None:
        """Forget steps that never returned."""
        self._open = []

    def _wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        original = vars(owner)[name]

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        def restore() -> None:
            if vars(owner).get(name) is call:  # nobody wrapped it again meanwhile
                setattr(owner, name, original)

        setattr(owner, name, call)
        self._put_back.append(restore)

    # -- the scaler ------------------------------------------------------------------------------

    def _scale(self, original: Any, scaler: Any, outputs: Any) -> Any:
        result = original(scaler, outputs)
        if self._active():
            self._safely(self._note_scaled, scaler, result)
        return result

    def _note_scaled(self, scaler: Any, result: Any) -> None:
        if not scaler.is_enabled():
            self.scaler_off = True
            return
        tensors = result if isinstance(result, (list, tuple)) else [result]
        ids = tuple(n for t in tensors if (n := self._number(t)) is not None)
        index = len(self._recorder.roll.ops)
        with self._recorder.quiet():
            scale = scaler._scale.detach().clone()  # update() writes it in place
        self._calls.scaled.append(Scaled(index, ids, scale, self._where()))

    def _scaler_step(
        self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not self._active() or not scaler.is_enabled():
            return original(scaler, optimizer, *args, **kwargs)
        attempt = self._safely(self._begin, optimizer, by_scaler=True, closure=False)
        try:
            return original(scaler, optimizer, *args, **kwargs)
        finally:
            if attempt is not None:
                self._end(attempt)

    # -- optimizers ------------------------------------------------------------------------------

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._active() or self._open:  # inside scaler.step, or inside its own base class
            return
        closure = any(map(callable, (*args[1:], *kwargs.values())))
        self._safely(self._begin, optimizer, by_scaler=False, closure=closure)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._open:
            return
        attempt = self._open[-1]
        if not attempt.by_scaler and attempt.optimizer == id(optimizer):
            self._end(attempt)

    def _begin(self, optimizer: Any, *, by_scaler: bool, closure: bool) -> Attempt:
        recorder = self._recorder
        if not recorder.truncated:
            recorder.book.taken(recorder, _parameters(optimizer))
        index = len(recorder.roll.ops)
        attempt = Attempt(
            first=index,
            last=sys.maxsize,
            optimizer=id(optimizer),
            name=type(optimizer).__name__,
            by_scaler=by_scaler,
            closure=closure,
            gradients=self._gradients(optimizer),
            where=self._where(),
        )
        self._open.append(attempt)
        self._calls.attempts.append(attempt)
        return attempt

    def _end(self, attempt: Attempt) -> None:
        attempt.last = len(self._recorder.roll.ops)
        if attempt in self._open:
            del self._open[self._open.index(attempt) :]

    def _gradients(self, optimizer: Any) -> tuple[int, ...]:
        grads = (p.grad for p in _parameters(optimizer))
        return tuple(n for g in grads if g is not None and (n := self._number(g)) is not None)

    # -- what torch switches off -----------------------------------------------------------------

    def _not_available(self, original: Any) -> bool:
        missing: bool = original()
        if missing and self._active():
            self._safely(self._note_asked, sys._getframe(2))
        return missing

    def _note_asked(self, frame: Any) -> None:
        """``frame`` is the constructor that asked whether CUDA is there, enabled as it was."""
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.amp.autocast_mode.autocast):
            dtype = str(owner.fast_dtype).removeprefix("torch.")
            self.asked.append(Asked("autocast", dtype, owner.device, self._where()))
        elif isinstance(owner, torch.amp.GradScaler):
            self.asked.append(Asked("GradScaler", "", "cuda", self._where()))

    def _safely(self, action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a part of ours; if it breaks, the script's own call still goes through."""
        try:
            return action(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the script
            self._recorder.caution(
                "calls-not-seen",
                f"a call of the scaler or optimizer was not noted: {type(error).__name__}: {error}",
            )
            return None

    # -- common ----------------------------------------------------------------------------------

    def _number(self, tensor: Any) -> int | None:
        """The storage's id on the tape; None for what the tape has not seen."""
        try:
            return self._recorder.roll.ids.get(tensor.untyped_storage()._cdata)
        except (AttributeError, NotImplementedError, RuntimeError):
            return None

    def _where(self) -> Where:
        source, caller = self._recorder.lines.key(sys._getframe(1))
        return source, caller, None, Phase.OPTIMIZER


def _parameters(optimizer: Any) -> Iterator[Tensor]:
    for group in getattr(optimizer, "param_groups", ()):
        yield from (p for p in group.get("params", ()) if isinstance(p, Tensor))
