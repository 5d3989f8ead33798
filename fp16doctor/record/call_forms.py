"""How each module was called: with one tensor, with plain values, or with nests of them.

Each module is looked at once, after its first call. Must not know what it is used for.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch
from torch import Tensor

from fp16doctor.schema.tape import CallForm

_NEST, _FLAT, _TENSOR = "nest", "flat", "tensor"
_RANK = (_TENSOR, _FLAT, _NEST)
_PLAIN = (Tensor, int, float, str, type(None), torch.dtype, torch.device)


class CallForms:
    """Module path -> form of its calls; of two modules with one path the wider form."""

    def __init__(self) -> None:
        self.known: dict[str, CallForm] = {}
        self._seen: set[int] = set()

    def note(self, entry: Any, args: Any, output: Any, frame: FrameType) -> None:
        """Look at a call of ``torch.nn.Module.__call__`` that ended, where it is the first.

        Args:
            entry: the module's entry, the same object at each call; it has a ``path``.
            args: positional arguments.
            output: what it returned.
            frame: of torch's own function that has the call's ``kwargs``.
        """
        if id(entry) in self._seen:
            return
        self._seen.add(id(entry))
        kwargs = frame.f_locals.get("kwargs")
        form = CallForm(_takes(args, kwargs), _TENSOR if _is_floating(output) else _NEST)
        self.known[entry.path] = _wider(self.known.get(entry.path, form), form)


def _takes(args: Any, kwargs: Any) -> str:
    if not isinstance(kwargs, dict):
        return _NEST  # not known
    if not kwargs and len(args) == 1 and _is_floating(args[0]):
        return _TENSOR
    return _FLAT if all(isinstance(v, _PLAIN) for v in (*args, *kwargs.values())) else _NEST


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype.is_floating_point


def _wider(one: CallForm, other: CallForm) -> CallForm:
    return CallForm(
        max(one.takes, other.takes, key=_RANK.index),
        max(one.returns, other.returns, key=_RANK.index),
    )
