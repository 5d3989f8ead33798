"""Which ops make a gradient of another one: a copy in another format, the same times a number.

Must not know what carries a scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fp16doctor.record.roll import RawOp, numbers
from fp16doctor.record.usage.step_view import PRODUCTS, base_of, number_factor

_COPIES = frozenset({"to_copy", "clone"})


class Made(NamedTuple):
    """A gradient made of an older one."""

    new: int
    old: int
    factor: float | None  # what it was multiplied by; None where a tensor holds it


class Copies:
    """Asked about each op between backward and the update, in order."""

    def __init__(self, gradients: set[int]) -> None:
        self._gradients = gradients
        self._held: dict[int, tuple[int, float]] = {}  # storage -> (gradient, its factor)

    def of(self, op: RawOp) -> Iterator[Made]:
        """Yield the gradients that ``op`` makes of others; copies beside them are remembered."""
        for source, result, factor in _steps(op):
            old, before = self._held.get(source, (source, 1.0))
            if old not in self._gradients or result == old:
                continue
            after = None if factor is None else before * factor
            if result in self._gradients:
                yield Made(result, old, after)
            elif after is not None:
                self._held[result] = (old, after)


def _steps(op: RawOp) -> Iterator[tuple[int, int, float | None]]:
    """Yield (storage read, storage made, factor) of an elementwise op that keeps its operand."""
    base, args = base_of(op), op.args
    factor: float | None = 1.0
    if base == "copy" and len(args) > 1:
        pairs = args[1], args[0]
    elif base in _COPIES and args:
        pairs = args[0], op.outputs
    elif base in PRODUCTS and len(args) > 1:
        pairs = args[0], args[0] if op.written else op.outputs
        factor = number_factor(op)
    else:
        return
    sources, results = (numbers(p) for p in pairs)
    if len(sources) == len(results):
        for source, result in zip(sources, results, strict=True):
            yield source, result, factor
