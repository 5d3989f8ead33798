"""One cure as it is put around a script.

Must not know any single cure.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from fp16doctor.apply.keep_places import Lines
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.prescription import Remedy
from fp16doctor.schema.recording import RunInfo

Around = AbstractContextManager[object]


def nothing_missed() -> tuple[str, ...]:
    """All of it was put on."""
    return ()


@dataclass(frozen=True, slots=True)
class Part:
    """Contexts around the run: ``outer`` ones around whoever watches it, ``inner`` ones inside."""

    outer: tuple[Around, ...] = ()
    inner: tuple[Around, ...] = ()
    missed: Callable[[], tuple[str, ...]] = nothing_missed  # places that never came by
    tree: ast.Module | None = None  # the script's own text, changed
    scaling: str = ""  # what the changed text has to be seen to do, as ``RunInfo.loss_scaling``
    loss_factor: float = 1.0  # what is recorded as the loss is the script's own times this


@dataclass(frozen=True, slots=True)
class Order:
    """What a cure is made from."""

    remedy: Remedy
    treated: tuple[Finding, ...]
    run: RunInfo  # as it was without the cure
    lines: Lines
    text: str | bytes | None = None  # of the script, where there is one
