"""Which module is running: the user's FQN, kept by global module hooks.

Only global hooks are used: hooks on instances would be saved and copied with the user's model.
Must not know ops or steps beyond calling back on the first module of a call.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from fp16doctor.record import own
from fp16doctor.record.call_forms import CallForms
from fp16doctor.record.compiled import is_compiled_graph
from fp16doctor.record.owner import name_in_owner
from fp16doctor.record.root_name import RootVariables
from fp16doctor.record.shards import address_of, note_address
from fp16doctor.record.threads import WatchedThread
from fp16doctor.schema.wrappers import plain_names

_CALL = nn.Module._call_impl.__code__


@dataclass(frozen=True, slots=True)
class ModuleEntry:
    """One module as a site names it."""

    path: str  # FQN below its root
    class_name: str
    is_loss: bool  # its root holds nothing to train and is called after the model


@dataclass(slots=True)
class _Known:
    """A module whose name is known."""

    ref: weakref.ref[nn.Module]
    path: str
    root: weakref.ref[nn.Module]
    entries: dict[bool, ModuleEntry] = field(default_factory=dict)  # by is_loss


class ModulePaths:
    """The stack of running modules and the names of everything below the roots seen."""

    def __init__(
        self,
        on_root: Callable[[nn.Module, Any], None],
        on_output: Callable[[ModuleEntry, nn.Module, Any], None] | None = None,
        guarded: Callable[..., Any] = lambda action, *args: action(*args),
    ) -> None:
        self.stack: list[ModuleEntry] = []
        self.forms = CallForms()
        self._running: list[nn.Module] = []
        self._on_root, self._on_output, self._guarded = on_root, on_output, guarded
        self._pinned: set[int] = set()  # roots that the script has named itself
        self._roots: dict[int, weakref.ref[nn.Module]] = {}
        self._owners: dict[int, str] = {}  # what the names below a root begin with
        self.variables = RootVariables()
        self._names: dict[int, _Known] = {}
        self._handles: list[Any] = []
        self._thread = WatchedThread()
        self._called: dict[int, nn.Module] = {}  # roots of the open step, kept for their names
        self._filter: Any = None
        self._searched = False  # all roots were named again in this call of a root
        self.loss_allowed = False  # set once the model was called in this step

    def attach(self) -> None:
        """Register the two global hooks; only the calling thread is watched."""
        self._thread.here()
        # torch warns of ours at each call of a compiled module.
        warnings.filterwarnings("ignore", message=".*when there are global hooks on modules")
        self._filter = warnings.filters[0]
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def begin(self) -> None:
        """Open a new step."""
        self.loss_allowed = False
        self._called.clear()

    def detach(self) -> None:
        """Remove them; nothing is left behind."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]  # it is a list
        self.unwind()

    def unwind(self) -> None:
        """No module is running: forget calls that an exception cut short."""
        self.stack.clear()
        self._running.clear()

    def unwind_if_idle(self) -> None:
        """Forget calls that a Ctrl-C cut short, which no hook tells."""
        frame = sys._getframe(1) if self.stack else None
        while frame is not None:
            if frame.f_code is _CALL:
                return
            frame = frame.f_back
        self.unwind()

    def adopt(self, root: nn.Module) -> None:
        """Name a root and everything below it; a wrapper called later does not rename them."""
        self._pinned.add(id(root))
        self._adopt(root)

    def path_of(self, module: nn.Module, otherwise: str) -> str:
        """Return the name under which a module's calls are recorded."""
        known = self._known(module)
        return otherwise if known is None else known.path

    def roots(self) -> list[nn.Module]:
        """Return the root modules that are still alive, in order of their first call."""
        return [m for r in list(self._roots.values()) if (m := r()) is not None]

    def named_tensors(self) -> dict[int, tuple[str, bool, bool]]:
        """Return storage address -> (FQN, trains, is a buffer) of all roots' tensors.

        Where two models use the same name, the later one's has its class and number in front.
        """
        table: dict[int, tuple[str, bool, bool]] = {}
        taken: set[str] = set()
        for number, root in enumerate(self.roots()):
            plain = self._names_below(root)
            tensors: list[tuple[str, Tensor, bool, bool]] = [
                (plain(n), p, p.requires_grad, False) for n, p in root.named_parameters()
            ]
            tensors += [(plain(n), b, False, True) for n, b in root.named_buffers()]
            for name, tensor, trains, buffer in tensors:
                unique = name if name not in taken else f"{type(root).__name__}#{number}.{name}"
                if note_address(table, unique, tensor, trains, buffer=buffer):
                    taken.add(unique)
        return table

    def tied_names(self) -> dict[int, tuple[str, ...]]:
        """Return storage address -> FQNs of a parameter behind its first, where it has several."""
        table: dict[int, tuple[str, ...]] = {}
        for root in self.roots():
            plain = self._names_below(root)
            first = {id(p): n for n, p in root.named_parameters()}
            for name, parameter in root.named_parameters(remove_duplicate=False):
                key = address_of(parameter)
                if key is not None and first[id(parameter)] != name:
                    table[key] = (*table.get(key, ()), plain(name))
        return table

    # -- hooks -----------------------------------------------------------------------------------

    # torch.compile traces what global hooks do; there is nothing to see while it traces.

    def _enter(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if not self._thread.runs():
            return
        if not self.stack:
            self._searched = False
            self._on_root(module, args)
            self._called[id(module)] = module
        entry = self._guarded(self._entry, module)
        if entry is not None:
            self.stack.append(entry)
            self._running.append(module)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        running = self._running
        if not running or not self._thread.runs():
            return
        if running[-1] is not module:  # calls that were cut short by an exception lie above
            if not any(m is module for m in running):
                return
            while running[-1] is not module:
                running.pop()
                self.stack.pop()
        running.pop()
        entry = self.stack.pop()
        self.forms.note(entry, args, output, sys._getframe(1))
        if self._on_output is not None:
            self._on_output(entry, module, output)

    # -- names -----------------------------------------------------------------------------------

    def _entry(self, module: nn.Module) -> ModuleEntry:
        known = self._find(module)
        root = known.root()  # a module without children is false where it counts them
        root = module if root is None else root
        loss = self.stack[-1].is_loss if self.stack else self._is_loss(root)
        entry = known.entries.get(loss)
        if entry is None:
            entry = known.entries[loss] = ModuleEntry(known.path, type(module).__name__, loss)
        return entry

    def _known(self, module: nn.Module) -> _Known | None:
        known = self._names.get(id(module))
        return known if known is not None and known.ref() is module else None

    def _find(self, module: nn.Module) -> _Known:
        known = self._known(module)
        if known is not None:
            return known
        if not self.stack:
            return self._adopt(module)
        return self._as_child(module) or self._search(module) or self._unnamed(module)

    def _adopt(self, root: nn.Module) -> _Known:
        """Take a module that was called from outside all modules for a root."""
        number = id(root)

        def forget(_: object) -> None:
            self._roots.pop(number, None)
            self._pinned.discard(number)

        self._roots[number] = ref = weakref.ref(root, forget)
        self._owners[number] = "" if number in self._pinned else self._in_front(root)
        self._learn(root, ref)
        return self._names[number]

    def _in_front(self, root: nn.Module) -> str:
        plain = [m for m in self.roots() if not self._owners.get(id(m))]
        return name_in_owner(root) or self.variables.in_front_of(root, plain)

    def _learn(self, root: nn.Module, ref: weakref.ref[nn.Module]) -> None:
        plain = self._names_below(root)
        for name, module in root.named_modules():
            self._name(module, plain(name), ref)

    def _names_below(self, root: nn.Module) -> Callable[[str], str]:
        plain, owner = plain_names(root.named_modules()), self._owners.get(id(root), "")
        return (lambda name: _join(owner, plain(name)).rstrip(".")) if owner else plain

    def _name(self, module: nn.Module, path: str, root: weakref.ref[nn.Module]) -> _Known:
        number, known = id(module), self._known(module)
        if known is not None and (path in (known.path, "") or self._is_pinned(known)):
            return known  # a longer name says more, but the script's own choice holds
        ref = weakref.ref(module, lambda _: self._names.pop(number, None))
        known = self._names[number] = _Known(ref, path, root)
        return known

    def _is_pinned(self, known: _Known) -> bool:
        root = known.root()
        return root is not None and id(root) in self._pinned

    def _as_child(self, module: nn.Module) -> _Known | None:
        """Name a module that was added after its root was first called."""
        parent = self._running[-1]
        for name, child in parent.named_children():
            if child is module:
                above = self._known(parent)
                return above and self._name(module, _join(above.path, name), above.root)
        return None

    def _search(self, module: nn.Module) -> _Known | None:
        """Look through all roots again, once in a call of a root."""
        if self._searched:
            return None
        self._searched = True
        for root in self.roots():
            self._learn(root, self._roots[id(root)])
        return self._known(module)

    def _unnamed(self, module: nn.Module) -> _Known:
        """Name a module that is part of no other, made on the fly: by its class.

        What ``torch.compile`` made of a module goes by that module's name.
        """
        above = self.stack[-1].path
        path = above if is_compiled_graph(module) else _join(above, type(module).__name__)
        return _Known(weakref.ref(module), path, weakref.ref(module))

    def _is_loss(self, root: nn.Module) -> bool:
        return (
            self.loss_allowed
            and own.is_grad_enabled()  # a teacher that is asked late is no loss
            and not any(p.requires_grad for p in root.parameters())
        )


def _join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name
