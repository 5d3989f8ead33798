"""Another number for an option of the script's optimizers: an eps that the format can hold.

Must not know which number is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fp16doctor.apply.attributes import replaced
from fp16doctor.apply.part import Order, Part
from fp16doctor.schema.location import Phase

# As a remedy prints it where the number is not on the line itself, but a default of torch.optim.
_PASSED = re.compile(r"\A# .+: pass (?P<new>\S+) for what is (?P<old>\S+)(?: in this call)?\Z")


def optimizer_constant(order: Order) -> Part | None:
    """Return the contexts in which optimizers are made with the remedy's number.

    None where the remedy names none, or treats something else than an optimizer's step.
    """
    found = _PASSED.match(order.remedy.change.strip())
    phases = {f.site.phase for f in order.treated if f.site is not None}
    if found is None or phases != {Phase.OPTIMIZER}:
        return None
    changed: list[str] = []
    context = _made_with(float(found["old"]), float(found["new"]), changed)
    return Part(outer=(context,), missed=lambda: () if changed else order.remedy.target)


@contextmanager
def _made_with(old: float, new: float, changed: list[str]) -> Iterator[None]:
    """Replace ``old`` among the options of every optimizer; ``changed`` gets their names."""

    def made(original: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            for options in (self.defaults, *self.param_groups):
                for name, value in options.items():
                    if type(value) is float and value == old:
                        options[name] = new
                        changed.append(name)

        return __init__

    with replaced(torch.optim.Optimizer, "__init__", made):
        yield
