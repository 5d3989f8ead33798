"""Where a training step begins and ends, and which phase an op belongs to.

A step is the span from the first module call (or first op on a tensor that requires grad) after
the last optimizer attempt to the next such; an attempt that the scaler skipped counts.

Must not know tapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from fp16doctor.record.threads import WatchedThread
from fp16doctor.schema.location import Phase


class StepState:
    """Phase bookkeeping of one thread."""

    def __init__(self, on_begin: Callable[[], None], on_attempt: Callable[[], None]) -> None:
        self._on_begin, self._on_attempt = on_begin, on_attempt
        self.running = False  # a module was called, or an op needed grad, in this step
        self.attempted = False  # an optimizer step, or the scaler's refusal of one, was seen
        self.backward_done = False
        self.in_backward = False
        self.uses_optimizer = False  # a torch.optim optimizer was stepped in this run
        self.optimizer_steps = 0
        self._left_to_found_inf = 0  # of these: no update where the scaler found inf
        self._has_optimizer = False  # one was made
        self.elsewhere = 0  # optimizer steps that other threads took in this run
        self.backwards_elsewhere = 0
        self.backward_depth = 0  # modules on the stack when backward began
        self._handles: list[Any] = []
        self._known_optimizers: set[type] = set()
        self._thread = WatchedThread()

    def attach(self) -> None:
        """Register the global optimizer hooks."""
        self._thread.here()
        self._known_optimizers = set(_used_optimizers())
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def detach(self) -> None:
        """Remove them."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._thread.runs():
            return
        self.uses_optimizer = True
        self.backward_done = True
        self._on_begin()

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._thread.runs():
            self.elsewhere += 1
            return
        self.optimizer_steps += 1
        # GradScaler hands it to fused optimizers, which look at it themselves.
        self._left_to_found_inf += getattr(optimizer, "found_inf", None) is not None
        self._on_attempt()

    def begin(self) -> None:
        """Open a new step."""
        self.running = False
        self.attempted = False
        self.backward_done = False
        self.optimizer_steps = self._left_to_found_inf = 0

    @property
    def updates_despite_inf(self) -> bool:
        """Whether an optimizer stepped whatever the scaler found."""
        return self.optimizer_steps > self._left_to_found_inf

    def updates_by_hand(self) -> bool:
        """Tell whether the script has made no optimizer since recording began."""
        if not self._has_optimizer:
            self._has_optimizer = not self._known_optimizers.issuperset(_used_optimizers())
        return not self._has_optimizer

    @property
    def may_begin(self) -> bool:
        """An attempt lies behind, and backward is over."""
        return self.attempted and not self.in_backward

    def phase_outside(self) -> Phase:
        """Return the phase of an op outside backward and outside every module."""
        if self.backward_done:
            return Phase.OPTIMIZER
        return Phase.LOSS if self.running else Phase.SCRIPT


def _used_optimizers(kind: type = Optimizer) -> Iterator[type]:
    """Yield the optimizer classes that have an instance: torch wraps their ``step`` then."""
    sub: type
    for sub in kind.__subclasses__():
        if getattr(sub.__dict__.get("step"), "hooked", False):
            yield sub
        yield from _used_optimizers(sub)
