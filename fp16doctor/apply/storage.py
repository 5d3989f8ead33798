"""fp32 storage in a running script: of its parameters, or of the tensors that a line updates.

Must not know how updates are measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fp16doctor.apply.change_dtype import TO_FP32, OtherFormat, functions_in
from fp16doctor.apply.keep_places import KeptPlaces
from fp16doctor.apply.line_edit import line_edit
from fp16doctor.apply.part import Order, Part
from fp16doctor.apply.quiet_autocast import autocast_is_on
from fp16doctor.apply.roots import at_roots
from fp16doctor.errors import ApplyError
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.policy import KeepRule

_OF_PARAMETERS, _MASTERS = "FD301", "master weights"


def part(order: Order) -> Part:
    """Return the contexts that store in fp32 what the treated findings name.

    Raises:
        ApplyError: no-line, where nothing says which tensor it is.
    """
    edited = line_edit(order)
    if edited is not None:
        return edited
    if _MASTERS in order.remedy.title or any(f.code == _OF_PARAMETERS for f in order.treated):
        return _master_weights(order)
    rules = tuple(dict.fromkeys(r for f in order.treated for r in _line(f)))
    if not rules:
        raise ApplyError("no line of the script is known that updates the tensor", "no-line")
    places = KeptPlaces(rules, order.lines)
    return Part(inner=(places,), missed=lambda: _missed(rules, places.applied))


def _missed(rules: tuple[KeepRule, ...], applied: set[str]) -> tuple[str, ...]:
    return () if applied else tuple(r.pattern for r in rules)


def _line(finding: Finding) -> Iterator[KeepRule]:
    for site in (finding.site, *finding.repeats):
        line = (site.source or site.caller) if site is not None else None
        if line is not None:
            yield KeepRule(f"line:{line.file}:{line.line}")


def _master_weights(order: Order) -> Part:
    """fp32 parameters, and autocast in the run's 16-bit format around each model's forward."""
    stored = dict(order.run.parameters_by_dtype)
    dtype = max((torch.bfloat16, torch.float16), key=lambda d: stored.get(_name(d), 0))
    device = "cuda" if "cuda" in order.run.device else "cpu"

    @contextmanager
    def autocast() -> Iterator[None]:
        if autocast_is_on():  # the script's own
            yield
            return
        with torch.autocast(device, dtype=dtype):
            yield

    return Part(
        outer=(functions_in(TO_FP32, autocast=False), at_roots(lambda root: None, autocast)),
        inner=(OtherFormat(TO_FP32),),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
