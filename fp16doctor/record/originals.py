"""What libraries were before the script replaced parts of them, for the length of our own work.

A script may put a function of its own in the place of ``torch.stack`` or ``json.dumps``; what it
takes and gives is the script's business. Must not know what is done meanwhile.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType, TracebackType
from typing import Any

# Modules whose functions fp16doctor and the libraries it writes reports with call by name.
_MODULES = (
    *("builtins", "collections", "dataclasses", "datetime", "functools", "html", "io", "itertools"),
    *("json", "json.decoder", "json.encoder", "math", "operator", "os", "os.path", "pathlib"),
    *("random", "re", "shutil", "statistics", "string", "tempfile", "textwrap", "time"),
    *("traceback", "weakref", "torch", "torch.nn", "torch.nn.functional"),
    *("torch.linalg", "torch.special", "torch.random", "torch.utils._pytree"),
)
_NOTHING: Any = object()


class Originals:
    """A context in which what it was made from is in place; may be entered again inside itself."""

    def __init__(self) -> None:
        owners: list[Any] = [importlib.import_module(name) for name in _MODULES]
        owners.append(importlib.import_module("torch").Tensor)
        self._kept = [(owner, dict(vars(owner))) for owner in owners]
        self._replaced: list[list[tuple[Any, str, Any]]] = []

    def __enter__(self) -> None:
        """Put the originals in place."""
        replaced = [change for owner, kept in self._kept for change in _changes(owner, kept)]
        self._replaced.append(replaced)
        for owner, name, _ in replaced:
            _put(owner, name, self._original(owner, name))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Put back what the script had there."""
        for owner, name, scripts in self._replaced.pop():
            _put(owner, name, scripts)

    def _original(self, owner: Any, name: str) -> Any:
        kept = next(kept for known, kept in self._kept if known is owner)
        return kept.get(name, _NOTHING)


def _changes(owner: Any, kept: dict[str, Any]) -> Iterator[tuple[Any, str, Any]]:
    """Yield (owner, name, what is there now) for all that differs and can be in our way."""
    now = dict(vars(owner))
    for name, value in kept.items():
        if now.get(name, _NOTHING) is not value:
            yield owner, name, now.get(name, _NOTHING)
    if isinstance(owner, ModuleType):
        return  # a new name in a module hides nothing
    for name in now.keys() - kept.keys():
        if any(name in vars(base) for base in owner.__mro__[1:]):
            yield owner, name, now[name]


def _put(owner: Any, name: str, value: Any) -> None:
    if value is _NOTHING:
        delattr(owner, name)
    else:
        setattr(owner, name, value)
