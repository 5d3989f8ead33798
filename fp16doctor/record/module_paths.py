"""Which module is running: the user's FQN, kept by global module hooks.

Only global hooks are used: hooks on instances would be saved and copied with the user's model.
Must not know ops or steps beyond calling back on the first module of a call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)


@dataclass(frozen=True, slots=True)
class ModuleEntry:
    """One module as a site names it."""

    path: str  # FQN below its root
    class_name: str
    is_loss: bool  # its root holds nothing to train and is called after the model


class ModulePaths:
    """The stack of running modules and the names of everything below the roots seen."""

    def __init__(self, on_root: Callable[[nn.Module], None]) -> None:
        self.stack: list[ModuleEntry] = []
        self._on_root = on_root
        self._roots: list[weakref.ref[nn.Module]] = []
        self._names: dict[int, tuple[weakref.ref[nn.Module], str, int]] = {}
        self._handles: list[Any] = []
        self.loss_allowed = False  # set once the model was called in this step

    def attach(self) -> None:
        """Register the two global hooks."""
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def detach(self) -> None:
        """Remove them; nothing is left behind."""
        for handle in self._handles:
            handle.remove()
        self._handles, self.stack = [], []

    def roots(self) -> list[nn.Module]:
        """Return the root modules that are still alive, in order of their first call."""
        return [m for r in self._roots if (m := r()) is not None]

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not self.stack:
            self._on_root(module)
        self.stack.append(self._entry(module))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.stack:
            self.stack.pop()

    def _entry(self, module: nn.Module) -> ModuleEntry:
        is_root = not self.stack
        path, root = self._find(module)
        if path is None:
            path, root = (self._adopt(module), module) if is_root else (self._unnamed(module), None)
        loss = self._is_loss(root or module) if is_root else self.stack[-1].is_loss
        return ModuleEntry(path, type(module).__name__, loss)

    def _find(self, module: nn.Module) -> tuple[str | None, nn.Module | None]:
        known = self._names.get(id(module))
        if known is not None and known[0]() is module:
            return known[1], self._roots[known[2]]()
        if self.stack and self.roots():  # a module added after its root was first called
            for number, ref in enumerate(self._roots):
                if (root := ref()) is not None:
                    self._learn(root, number)
            known = self._names.get(id(module))
            if known is not None and known[0]() is module:
                return known[1], self._roots[known[2]]()
        return None, None

    def _adopt(self, module: nn.Module) -> str:
        self._roots.append(weakref.ref(module))
        self._learn(module, len(self._roots) - 1)
        return ""

    def _learn(self, root: nn.Module, number: int) -> None:
        for name, module in root.named_modules():
            known = self._names.get(id(module))
            if known is None or known[0]() is not module or module is not root:
                self._names[id(module)] = (weakref.ref(module), name, number)

    def _unnamed(self, module: nn.Module) -> str:
        parent = self.stack[-1].path if self.stack else ""
        name = type(module).__name__
        entry = f"{parent}.{name}" if parent else name
        self._names[id(module)] = (weakref.ref(module), entry, max(len(self._roots) - 1, 0))
        return entry

    def _is_loss(self, root: nn.Module) -> bool:
        return self.loss_allowed and not any(p.requires_grad for p in root.parameters())

    def named_tensors(self) -> dict[int, tuple[str, bool, bool]]:
        """Return storage address -> (FQN, trains, is a buffer) of all roots' tensors."""
        table: dict[int, tuple[str, bool, bool]] = {}
        for root in self.roots():
            for name, p in root.named_parameters():
                _note(table, name, p, p.requires_grad, buffer=False)
            for name, b in root.named_buffers():
                _note(table, name, b, False, buffer=True)
        return table


def _note(
    table: dict[int, tuple[str, bool, bool]], name: str, t: Tensor, trains: bool, *, buffer: bool
) -> None:
    try:
        key = t.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError, ValueError):  # sparse, uninitialised, wrapped
        return
    table.setdefault(key, (name, trains, buffer))
