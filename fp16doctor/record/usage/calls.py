"""The calls of one step that no op tells of: the scaler's, the optimizers', what was asked for.

Must not know how they are noticed (``watch``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fp16doctor.record.source_lines import LineKey
from fp16doctor.record.whereabouts import Where

Lines = tuple[LineKey | None, LineKey | None]


@dataclass(slots=True)
class Scaled:
    """``scaler.scale(loss)`` of an enabled scaler."""

    index: int  # ops recorded when it returned
    outputs: tuple[int, ...]  # storages it returned
    scale: Tensor  # the factor it applied, on its device
    where: Where


@dataclass(slots=True)
class Attempt:
    """``scaler.step(optimizer)``, or ``optimizer.step()`` outside it."""

    first: int  # ops recorded when it began
    last: int  # ops recorded when it returned
    optimizer: int  # identity of the object
    name: str  # its class
    by_scaler: bool
    closure: bool  # computes its gradients itself
    gradients: tuple[int, ...]  # storages of its parameters' gradients
    where: Where


@dataclass(slots=True)
class Calls:
    """Calls of one step, in order."""

    scaled: list[Scaled] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    coefficients: dict[int, Any] = field(default_factory=dict)  # op index -> 0-d factor it applies
    lines: dict[int, Lines] = field(default_factory=dict)  # op index -> line inside a backward
    hooked: set[int] = field(default_factory=set)  # products in hooks and backwards in Python

    def clear(self) -> None:
        """Open a new step."""
        self.scaled, self.attempts, self.coefficients, self.lines = [], [], {}, {}
        self.hooked = set()

    def inside_attempt(self, index: int) -> bool:
        """Whether op ``index`` ran inside a step of an optimizer or scaler."""
        return any(a.first <= index < a.last for a in self.attempts)


@dataclass(frozen=True, slots=True)
class Asked:
    """A format or a scaler that the script asked for and torch switched off."""

    what: str  # "autocast", "GradScaler"
    dtype: str  # "float16", "" for a scaler
    device: str
    where: Where
