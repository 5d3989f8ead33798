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
_running_node: Callable[[], Any] = torch._C._current_autograd_node
_grad_enabled: Callable[[], bool] = torch._C.is_grad_enabled

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
        backward_began: Callable[[bool], None],
        backward_ended: Callable[[], None],
        forward_began: Callable[[], None],
    ) -> None:
        self._lines, self._modules, self._steps = lines, modules, steps
        self._backward_began, self._backward_ended = backward_began, backward_ended
        self._forward_began = forward_began
        self._sites: dict[int, Where] = {}  # node -> place of the op that built it
        self._older_sites: dict[int, Where] = {}  # of the step before
        self._backward_line: tuple[LineKey | None, LineKey | None] = (None, None)
        self._last_node = _next_node()

    def clear(self) -> None:
        """Open a new step; a graph may live on for one more (a generator's, behind its critic)."""
        self._older_sites, self._sites = self._sites, {}
        self._last_node = _next_node()

    def now(self, *, only_if_built: bool) -> Where | None:
        """Return the place of the op being dispatched.

        ``only_if_built``: the caller needs no place; None unless the op built a node.
        """
        node = _running_node()
        number = _next_node()
        built, self._last_node = number != self._last_node, number
        steps, stack = self._steps, self._modules.stack
        if node is not None:
            if not steps.in_backward:
                self._begin_backward()
            if len(stack) <= steps.backward_depth:
                where = self._in_backward(node, number)
                if where is not None:
                    return where
        elif steps.in_backward:
            self.end_backward()
        if built and not stack and node is None and _grad_enabled():
            self._forward_outside_modules()
        if only_if_built and not built:
            return None
        return self._in_forward(node, number)

    def _in_forward(self, node: Any, number: int) -> Where:
        """``node`` is given where a checkpoint runs a forward again."""
        stack = self._modules.stack
        module: ModuleEntry | None = stack[-1] if stack else None
        if node is not None and len(stack) <= self._steps.backward_depth:
            site = self._site(node)
            module = site[2] if site else module
        if module is not None:
            phase = Phase.LOSS if module.is_loss else Phase.FORWARD
        else:
            phase = self._steps.phase_outside()
        source, caller = self._lines.key(sys._getframe(2))
        where = (source, caller, module, phase)
        self._sites.setdefault(number - 1, where)
        return where

    def _in_backward(self, node: Any, number: int) -> Where | None:
        """Return the place of the forward op; None if a checkpoint runs a forward again."""
        own, recomputing = self._lines.within_backward(sys._getframe(2))
        if recomputing:
            return None
        site = self._site(node)
        if own is not None:  # a backward or a hook in Python
            caller = None if site is None or self._lines.is_users(own) else site[1] or site[0]
            where: Where = (own, caller, site[2] if site else None, Phase.BACKWARD)
        elif site is None:
            where = (*self._backward_line, None, Phase.BACKWARD)
        else:
            where = (site[0], site[1], site[2], Phase.BACKWARD)
        if _grad_enabled():  # double backward: new nodes inherit the place
            self._sites.setdefault(number - 1, where)
        return where

    def _site(self, node: Any) -> Where | None:
        number = node._sequence_nr()
        return self._sites.get(number) or self._older_sites.get(number)

    def _begin_backward(self) -> None:
        frame = sys._getframe(2)
        self._steps.in_backward = self._steps.running = True
        self._steps.backward_depth = len(self._modules.stack)
        self._backward_line = self._lines.key(frame)
        again = _grad_enabled() and not self._lines.within_backward(frame)[1]
        self._backward_began(again)

    def end_backward(self) -> None:
        """The autograd engine has returned."""
        self._steps.in_backward = False
        self._steps.backward_done = True
        self._backward_ended()

    def _forward_outside_modules(self) -> None:
        """A node was built outside every module: a step may be written without modules."""
        if self._steps.backward_done or not self._steps.running:
            self._forward_began()
