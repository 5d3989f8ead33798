"""The recommended cure, put around a script from outside and taken off again.

Must not know how one kind of cure is put on: each has a file.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fp16doctor.apply import fixup_init, keep_list, scaler_use, storage
from fp16doctor.apply.change_dtype import TO_BF16, TO_FP32, OtherFormat, functions_in
from fp16doctor.apply.hand_scale import with_scale
from fp16doctor.apply.keep_places import KeptPlaces, Lines
from fp16doctor.apply.line_edit import line_edit
from fp16doctor.apply.loss_scale import backward_scaled_by, no_scaler, scaler_starts_at
from fp16doctor.apply.optimizer_constant import optimizer_constant
from fp16doctor.apply.part import Order, Part
from fp16doctor.errors import ApplyError
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.prescription import RemedyKind

_BY_HAND = "by hand, "
_WITHOUT_SCALE = "without a loss scale"


class ScriptPatch:
    """Two contexts around a run; ``missed`` names places that the run never came by."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self._parts = parts

    @contextmanager
    def outer(self) -> Iterator[None]:
        """Enter before anyone watches the run."""
        with ExitStack() as stack:
            for part in self._parts:
                for context in part.outer:
                    stack.enter_context(context)
            yield

    @contextmanager
    def inner(self) -> Iterator[None]:
        """Enter right before the script, inside whoever watches it."""
        with ExitStack() as stack:
            for part in self._parts:
                for context in part.inner:
                    stack.enter_context(context)
            yield

    @property
    def tree(self) -> ast.Module | None:
        """Return the script's changed text, where a part changed it."""
        return next((p.tree for p in self._parts if p.tree is not None), None)

    @property
    def scaling(self) -> str:
        """Return the loss scaling that the changed text has to show, "" where none is asked."""
        return next((p.scaling for p in self._parts if p.scaling), "")

    @property
    def loss_factor(self) -> float:
        """Return what is recorded as a loss over the script's own loss."""
        return math.prod(part.loss_factor for part in self._parts)

    def missed(self) -> tuple[str, ...]:
        """Return places of the cure that the run never came by."""
        return tuple(place for part in self._parts for place in part.missed())


def patch_for(diagnosis: Diagnosis, lines: Lines, text: str | bytes | None = None) -> ScriptPatch:
    """Return the recommended cure of a diagnosis as a patch of the script with that text.

    Raises:
        ApplyError: why it cannot be put on from outside.
    """
    chosen = [diagnosis.prescriptions[i] for i in diagnosis.recommendation.prescriptions]
    parts = []
    for cure in chosen:
        treated = tuple(diagnosis.findings[i] for i in cure.treats)
        parts.append(_part(Order(cure.remedy, treated, diagnosis.run, lines, text)))
    return ScriptPatch(tuple(parts))


def _part(order: Order) -> Part:
    kind = order.remedy.kind
    if kind is RemedyKind.FP32_KEEP:
        return _keep(order)
    if kind is RemedyKind.STORAGE:
        return storage.part(order)
    if kind is RemedyKind.FIXUP_INIT:
        return fixup_init.part(order)
    if kind is RemedyKind.DTYPE:
        return _dtype(order)
    if kind is RemedyKind.LOSS_SCALE:
        return _loss_scale(order)
    return line_edit(order) or optimizer_constant(order) or scaler_use.part(order)


def _keep(order: Order) -> Part:
    """As it is told, where that is an edit of lines and nothing else."""
    edited = None if order.remedy.casts else line_edit(order)
    return edited or keep_list.part(order)


def _dtype(order: Order) -> Part:
    remedy = order.remedy
    formats = TO_BF16 if remedy.value == "bf16" else TO_FP32
    without = _WITHOUT_SCALE in f"{remedy.title} {remedy.change}"
    return Part(
        outer=(functions_in(formats), *((no_scaler(),) if without else ())),
        inner=(OtherFormat(formats), KeptPlaces((), order.lines)),
    )


def _loss_scale(order: Order) -> Part:
    """In the GradScaler, else in the script's text, else around its own backward."""
    scale, run = float(order.remedy.value["recommended"]), order.run
    if "GradScaler" in run.loss_scaling:
        return Part(outer=(scaler_starts_at(scale),))
    by_hand = [s for s in run.loss_scaling.split("; ") if s.startswith(_BY_HAND)]
    if len(by_hand) > 1:
        raise ApplyError(
            f"the script scales its losses by several numbers ({run.loss_scaling})", "many-scales"
        )
    own = float(by_hand[0].removeprefix(_BY_HAND)) if by_hand else 1.0
    factor = scale / own
    if by_hand and order.text is not None:
        tree = with_scale(ast.parse(order.text), own, scale)
        if tree is not None:
            return Part(tree=tree, loss_factor=factor, scaling=f"{_BY_HAND}{scale:.10g}")
    return Part(inner=(backward_scaled_by(factor),), loss_factor=factor)
