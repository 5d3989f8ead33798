"""Keeps functions, lines and ops of a running script in fp32.

Must not know modules (``keep_fp32``) or how files are named: whoever calls knows the lines.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from fp16doctor.apply.cast_on_leaving import CastOnLeaving
from fp16doctor.apply.kept_call import (
    computes,
    in_fp32,
    is_dtype_of,
    reconciled,
    writes_in_place,
)
from fp16doctor.apply.script_mode import ScriptMode, is_own
from fp16doctor.apply.values import HALF, to_dtype
from fp16doctor.schema.location import SourceLine
from fp16doctor.schema.policy import KeepRule

LineKey = tuple[CodeType, int]
_CALL = nn.Module._call_impl.__code__


class Lines(Protocol):
    """Names the user's line, and the library's in front of it, of a running frame."""

    def key(self, frame: FrameType | None) -> tuple[LineKey | None, LineKey | None]:
        """Return (innermost line outside torch, the user's own where that is a library's)."""

    def line(self, key: LineKey | None) -> SourceLine | None:
        """Return the line itself."""


class KeptPlaces(ScriptMode):
    """Runs what stands on kept lines in fp32; without rules it only reconciles formats.

    What leaves a kept place flows on in fp32. Where torch refuses to mix it with 16-bit tensors,
    as in a model that is stored in 16 bits, it is cast to their format. With ``outputs`` it is cast
    to that format wherever another place takes it, once.
    """

    def __init__(
        self, rules: tuple[KeepRule, ...], lines: Lines, outputs: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self._left = CastOnLeaving(outputs) if outputs is not None else None
        self._rules, self._lines = rules, lines
        self._known: dict[LineKey, tuple[str, ...]] = {}
        self.applied: set[str] = set()  # patterns of rules that covered a call

    def call(self, func: Any, args: Any, kwargs: dict[str, Any], frame: FrameType) -> Any:
        """Run one call: in fp32 where its place is kept, else as the script has it."""
        if not computes(func) and not is_dtype_of(func):
            return func(*args, **kwargs)
        if self._keeps(frame):
            result = in_fp32(func, args, kwargs)
            return result if self._left is None else self._left.made(result)
        if self._left is not None and not writes_in_place(func):
            args, kwargs = self._left.taken((args, kwargs))
        return reconciled(func, args, kwargs)

    def _keeps(self, frame: FrameType | None) -> bool:
        if not self._rules:
            return False
        names = {n for key in self._lines.key(frame) if key is not None for n in self._names(key)}
        if any(n.startswith("line:") for n in names) and in_module_of_torch(frame):
            names = {n for n in names if not n.startswith("line:")}
        self.applied.update(names)
        return bool(names)

    def _names(self, key: LineKey) -> tuple[str, ...]:
        if key not in self._known:
            line = self._lines.line(key)
            found = [r.pattern for r in self._rules if line is not None and r.names_line(line)]
            self._known[key] = tuple(found)
        return self._known[key]


def in_module_of_torch(frame: FrameType | None) -> bool:
    """Tell whether a module of torch runs a call, below another module.

    A line is what it computes itself: ``sigmoid(self.conv(x))`` the sigmoid alone. A module that
    the script calls from outside all modules, a loss, belongs to its line.
    """
    inner: Any = None
    while frame is not None:
        if frame.f_code is _CALL:
            if inner is not None:
                return True  # below this one
            inner = frame.f_locals.get("self")
            if not type(inner).__module__.startswith("torch.nn."):
                return False
        frame = frame.f_back
    return False


class KeptOps(TorchDispatchMode):
    """Runs kept ATen ops in fp32, below autograd: their backward gets fp32, too."""

    def __init__(self, rules: tuple[KeepRule, ...], outputs: torch.dtype | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self._outputs = outputs
        self._rules = rules
        self.applied: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one op, with its inputs in fp32 where a rule names it."""
        kwargs = kwargs or {}
        name = str(func)
        found = [r.pattern for r in self._rules if r.names_op(name)]
        if not found or func._schema.is_mutable or is_own(sys._getframe(1)):
            return func(*args, **kwargs)
        self.applied.update(found)
        result = func(*tree_map(_up, args), **tree_map(_up, kwargs))
        return result if self._outputs is None else to_dtype(result, self._outputs)


def _up(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value
