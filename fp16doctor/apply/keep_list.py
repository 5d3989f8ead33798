"""A keep-list around a script: modules, functions, lines and ops.

Must not know how a kept call is run.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import nn

from fp16doctor.apply.keep_fp32 import covered, keep_fp32
from fp16doctor.apply.keep_places import KeptOps, KeptPlaces
from fp16doctor.apply.part import Order, Part
from fp16doctor.apply.roots import at_roots
from fp16doctor.schema.policy import KeepRule
from fp16doctor.schema.variables import variables_beside


def part(order: Order) -> Part:
    """Return the contexts that keep the remedy's targets in fp32."""
    rules = tuple(map(KeepRule, order.remedy.target))
    outputs = getattr(torch, order.remedy.value) if order.remedy.value else None
    modules = _Modules(tuple(r for r in rules if r.kind == "module"), outputs)
    named = tuple(r for r in rules if r.kind in ("function", "line"))
    places = KeptPlaces(named, order.lines, outputs)
    ops = KeptOps(tuple(r for r in rules if r.kind == "op"), outputs)
    has_ops = any(r.kind == "op" for r in rules)

    def missed() -> tuple[str, ...]:
        met = modules.applied | places.applied | ops.applied
        return tuple(r.pattern for r in rules if r.pattern not in met)

    return Part(
        outer=(modules.around(),) if modules.rules else (),
        inner=(places, *((ops,) if has_ops else ())),
        missed=missed,
    )


class _Modules:
    """Puts the rules for modules on each root that is called."""

    def __init__(self, rules: tuple[KeepRule, ...], outputs: torch.dtype | None) -> None:
        self.rules = rules
        self._outputs = outputs
        self.applied: set[str] = set()

    def around(self) -> AbstractContextManager[None]:
        return at_roots(self._first_call)

    def _first_call(self, root: nn.Module) -> None:
        names = {r.pattern: name for r in self.rules if (name := _name_below(root, r.what))}
        if names:
            keep_fp32(root, list(names.values()), outputs=self._outputs)
            self.applied.update(names)


def _name_below(root: nn.Module, path: str) -> str:
    """Return a path without the variable that holds the model in front, "" for another model's."""
    front, _, rest = path.partition(".")
    own = variables_beside(root).get(front) is root
    return next((p for p in (path, rest if own else "") if p and _covers(root, p)), "")


def _covers(root: nn.Module, path: str) -> bool:
    return any(True for _ in covered(root, path))
