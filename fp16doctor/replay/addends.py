"""How much of a faint value reaches anything that can tell its lost bits.

A format's subnormal numbers have the spacing of its smallest normal ones. A value that is only
added to something loses nothing there that the rounding of the sum would have left.

Must not know bounds or words.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from fp16doctor.formats.number_format import NumberFormat, get_format
from fp16doctor.replay.player import Player
from fp16doctor.replay.values import FORMAT_NAMES
from fp16doctor.schema.tape import OpCall, TensorRef, refs_in

# Positions of what is only added, by name of the op.
_ADDENDS = {
    "add": (0, 1),
    "add_": (0, 1),
    "sub": (0, 1),
    "sub_": (0, 1),
    "addmm": (0,),
    "addmv": (0,),
    "baddbmm": (0,),
    "linear": (2,),
    "convolution": (2,),
}
_BIASES = frozenset(["convolution"])  # along the second dimension


class Addends:
    """Follows faint values to their uses."""

    def __init__(self) -> None:
        self._faint: dict[int, tuple[int, NumberFormat]] = {}  # storage -> op that made it
        self._exposed: dict[int, float] = {}  # op -> share of its result

    def made(self, call: OpCall, ref: TensorRef, fmt: NumberFormat) -> None:
        """An op gave a result that is faint in part."""
        self._faint[ref.storage] = call.index, fmt

    def exposed(self, index: int) -> float:
        """Share of an op's faint result that enters more than a sum too coarse for it."""
        return self._exposed.get(index, 1.0)

    def used(self, call: OpCall, run: Player) -> None:
        """Look at what an op does with faint values."""
        if not self._faint:
            return
        views = {r.storage for r in refs_in(call.outputs)} - set(call.mutates)
        for ref in refs_in((call.args, call.kwargs)):
            if ref.storage in self._faint and ref.storage not in views:
                index, fmt = self._faint[ref.storage]
                share = _share(call, ref, fmt, run)
                self._exposed[index] = max(share, self._exposed.get(index, 0.0))
        for number in call.mutates:
            self._faint.pop(number, None)


def _share(call: OpCall, ref: TensorRef, fmt: NumberFormat, run: Player) -> float:
    """Share of a value that one op brings to where its lost bits can be told."""
    out = call.outputs
    if not _is_addend(call, ref) or type(out) is not TensorRef or not run.env.has(out.storage):
        return 1.0
    total = run.env.tensor(out)
    if not total.is_floating_point() or total.dtype not in FORMAT_NAMES:
        return 1.0
    size = _beside(call, ref, total, run)
    return 1.0 if size is None else _exposed(size, total, fmt)


def _exposed(size: Tensor, total: Tensor, fmt: NumberFormat) -> float:
    """Share of ``size`` that stands where a sum resolves what the faint format does not."""
    eps = get_format(FORMAT_NAMES[total.dtype]).eps
    fine = total.double().abs() * eps < fmt.smallest_subnormal
    mass = float(size.sum())
    return float(size[fine].sum()) / mass if mass else 0.0


def _beside(call: OpCall, ref: TensorRef, total: Tensor, run: Player) -> Tensor | None:
    """Magnitudes of an addend in the shape of the sum."""
    if ref.storage in call.mutates:
        return torch.ones_like(total, dtype=torch.float64)  # overwritten by the sum
    size = run.env.tensor(ref).double().abs()
    if _name(call) in _BIASES:
        size = size.reshape(-1, *[1] * (total.dim() - 2))
    try:
        return size.expand_as(total)
    except RuntimeError:
        return None


def _is_addend(call: OpCall, ref: TensorRef) -> bool:
    """Tell whether an op only adds it: nowhere else among its arguments, and not scaled."""
    places = _ADDENDS.get(_name(call), ())
    rest: list[Any] = [a for i, a in enumerate(call.args) if i not in places]
    return (
        bool(places)
        and not call.kwargs
        and prod(ref.shape) > 0
        and ref.storage not in {r.storage for r in refs_in(rest)}
    )


def _name(call: OpCall) -> str:
    return call.op.split(".")[1]
