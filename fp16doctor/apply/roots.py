"""Reaches the models of a running script: each module that is called from outside all modules.

Only global hooks are used, and both are taken off again. Must not know what is done to a model.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)


@contextmanager
def at_roots(
    first_call: Callable[[nn.Module], None],
    around: Callable[[], AbstractContextManager[object]] | None = None,
) -> Iterator[None]:
    """Call ``first_call(root)`` before the first forward of each root, ``around`` each of them."""
    watch = _Watch(first_call, around)
    handles = [
        register_module_forward_pre_hook(watch.enter),
        register_module_forward_hook(watch.leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        watch.unwind()


class _Watch:
    def __init__(
        self,
        first_call: Callable[[nn.Module], None],
        around: Callable[[], AbstractContextManager[object]] | None,
    ) -> None:
        self._first_call, self._around = first_call, around
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._root: nn.Module | None = None
        self._depth = 0  # calls of the root inside itself
        self._open: AbstractContextManager[object] | None = None

    def enter(self, module: nn.Module, args: Any) -> None:
        if torch._C._current_graph_task_id() != -1:  # a checkpoint computes its forward again
            return
        if self._root is not None:
            self._depth += module is self._root
            return
        if module not in self._seen:
            self._seen.add(module)
            self._first_call(module)
        self._root, self._depth = module, 1
        if self._around is not None:
            self._open = self._around()
            self._open.__enter__()

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if module is not self._root or torch._C._current_graph_task_id() != -1:
            return
        self._depth -= 1
        if self._depth == 0:
            self.unwind()

    def unwind(self) -> None:
        """No root is running."""
        self._root, opened, self._open = None, self._open, None
        if opened is not None:
            opened.__exit__(None, None, None)
