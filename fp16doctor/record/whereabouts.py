"""Where an op stands: line, module, phase; backward ops get the place of their forward op.

Autograd numbers its nodes; the number of the node being built at a forward op, and of the node
being run at a backward op, are the same, and tie the two together.

Must not know tapes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from fp16doctor.record.module_paths import ModuleEntry, ModulePaths
from fp16doctor.record.source_lines import LineKey, SourceLines
from fp16doctor.record.steps import StepState
from fp16doctor.schema.location import Phase

_next_node: Callable[[], int] = torch._C._autograd._get_sequence_nr

# (innermost line, the user's own line, module, phase)
Where = tuple[LineKey | None, LineKey | None, ModuleEntry | None, Phase]


class Whereabouts:
    """Answers "where are we?" once an op; notices backward beginning and ending on the way."""

    def __init__(
        self,
        lines: SourceLines,
        modules: ModulePaths,
        steps: StepState,
        *,
        backward_began: Callable[[], None],
        backward_ended: Callable[[], None],
        forward_began: Callable[[], None],
    ) -> None:
        self._lines, self._modules, self._steps = lines, modules, steps
        self._backward_began, self._backward_ended = backward_began, backward_ended
        self._forward_began = forward_began
        self._forward_sites: dict[int, Where] = {}
        self._backward_line: tuple[LineKey | None, LineKey | None] = (None, None)
        self._last_node = 0

    def clear(self) -> None:
        """Forget the nodes of the step that is closed."""
        self._forward_sites.clear()

    def now(self) -> Where:
        """Return the place of the op being dispatched."""
        node = torch._C._current_autograd_node()
        number = _next_node()
        built, self._last_node = number != self._last_node, number
        stack, steps = self._modules.stack, self._steps
        if node is not None:
            if not steps.in_backward:
                self._begin_backward()
            if len(stack) <= steps.backward_depth:
                return self._in_backward(node, number)
        elif steps.in_backward:
            self.end_backward()
        module: ModuleEntry | None = None
        if stack:
            module = stack[-1]
            phase = Phase.LOSS if module.is_loss else Phase.FORWARD
        else:
            if built:
                self._forward_outside_modules()
            phase = steps.phase_outside()
        source, caller = self._lines.key(sys._getframe(1))
        where = (source, caller, module, phase)
        self._forward_sites.setdefault(number - 1, where)
        return where

    def _in_backward(self, node: Any, number: int) -> Where:
        site = self._forward_sites.get(node._sequence_nr())
        if site is None:
            where: Where = (*self._backward_line, None, Phase.BACKWARD)
        else:
            where = (site[0], site[1], site[2], Phase.BACKWARD)
        if torch.is_grad_enabled():  # double backward: new nodes inherit the place
            self._forward_sites.setdefault(number - 1, where)
        return where

    def _begin_backward(self) -> None:
        self._steps.in_backward = self._steps.running = True
        self._steps.backward_depth = len(self._modules.stack)
        self._backward_line = self._lines.key(sys._getframe(1))
        self._backward_began()

    def end_backward(self) -> None:
        """The autograd engine has returned."""
        self._steps.in_backward = False
        self._steps.backward_done = True
        self._backward_ended()

    def _forward_outside_modules(self) -> None:
        """A node was built outside every module: a step may be written without modules."""
        steps = self._steps
        if not steps.optimizer_depth and (steps.backward_done or not steps.running):
            self._forward_began()
