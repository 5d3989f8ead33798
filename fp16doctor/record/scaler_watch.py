"""Notices ``GradScaler.update`` in steps that are not taped: loss scale, found_inf, attempts.

The method is wrapped on the class while a run is watched, and put back afterwards. Must not know
what the numbers mean.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fp16doctor.record import own


class ScalerWatch:
    """``updating()`` is called before an update, ``updated(scale, found, next scale)`` after it."""

    def __init__(
        self,
        updating: Callable[[], None],
        updated: Callable[[Tensor, Tensor | None, Tensor], None],
    ) -> None:
        self._updating, self._updated = updating, updated
        self._put_back: Callable[[], None] | None = None

    def attach(self) -> None:
        """Put the wrapper on."""
        owner: Any = torch.amp.GradScaler
        original = owner.update

        @functools.wraps(original)
        def update(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            scale = getattr(scaler, "_scale", None) if scaler.is_enabled() else None
            if scale is None:
                return original(scaler, *args, **kwargs)
            self._updating()
            before, found = _copy(scale), _found(scaler)
            result = original(scaler, *args, **kwargs)
            self._updated(before, found, _copy(scaler._scale))
            return result

        def restore() -> None:
            if owner.update is update:  # nobody wrapped it again meanwhile
                owner.update = original

        owner.update, self._put_back = update, restore

    def detach(self) -> None:
        """Take it off."""
        if self._put_back is not None:
            self._put_back()
        self._put_back = None


def _copy(scalar: Tensor) -> Tensor:
    with torch._C._DisableTorchDispatch():
        return scalar.detach().clone()


def _found(scaler: Any) -> Tensor | None:
    """Return what is above 0 if any optimizer's gradients had an inf or a NaN; read later."""
    states = getattr(scaler, "_per_optimizer_states", {}).values()
    flags = [f for s in states for f in s.get("found_inf_per_device", {}).values()]
    if not flags:
        return None
    with torch._C._DisableTorchDispatch():
        return own.stack([f.detach().to(flags[0].device) for f in flags]).sum()
