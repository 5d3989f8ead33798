"""What ran, whatever was asked for: formats of ops and weights, autocast, loss scaling.

Must not know what the script meant to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor

from fp16doctor.record import own
from fp16doctor.record.usage.step_view import StepView, first_ref

_DEVICES = ("cpu", "cuda")
Counts = tuple[tuple[str, int], ...]


class RunFacts:
    """Collected while the run is watched."""

    def __init__(self) -> None:
        self._autocast: set[tuple[str, torch.dtype]] = set()
        self._scalings: dict[str, None] = {}  # kinds of loss scale, in order
        self.parameters: Counts = ()  # elements by dtype
        self.bytes: Counts = ()  # bytes that the ops of the first training step made, by dtype

    def model_called(self) -> None:
        """Note under which autocast a root module is called."""
        for device in _DEVICES:
            if own.is_autocast_enabled(device):
                self._autocast.add((device, own.get_autocast_dtype(device)))

    def step_closed(self, view: StepView, parameters: Iterable[Tensor]) -> None:
        """Note formats of the first training step, loss scales of every one."""
        if not self.parameters:
            self.parameters = _count((p.dtype, p.numel()) for p in parameters)
        if not self.bytes:
            self.bytes = _count(_made(view))
        for backward in view.backwards:
            scaling = backward.scaling
            if scaling.kind == "hand":
                self._scalings.setdefault(f"by hand, {scaling.factor:.10g}")
            elif scaling.kind == "scaler":
                self._scalings.setdefault("GradScaler")

    @property
    def autocast(self) -> tuple[str, ...]:
        """``cpu float16``: what was on when a root module was called."""
        return tuple(sorted(f"{d} {_name(t)}" for d, t in self._autocast))

    def scaling(self, *, switched_off: bool) -> str:
        """GradScaler, by hand, off, or none."""
        off = ("GradScaler, switched off",) if switched_off and not self._scalings else ()
        return "; ".join((*self._scalings, *off)) or "none"


def _made(view: StepView) -> Iterator[tuple[torch.dtype, int]]:
    for op in view.ops:
        ref = first_ref(op.outputs)
        if ref is not None:
            yield ref[1], prod(map(int, ref[2])) * ref[1].itemsize


def _count(pairs: Iterable[tuple[torch.dtype, int]]) -> Counts:
    counts: dict[str, int] = {}
    for dtype, number in pairs:
        counts[_name(dtype)] = counts.get(_name(dtype), 0) + number
    return tuple(sorted(counts.items()))


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
