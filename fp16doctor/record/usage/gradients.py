"""Follows every gradient from backward to the update: does it carry a scale, who touched it.

Must not know which touch is a fault.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from fp16doctor.record.roll import RawOp
from fp16doctor.record.split import reads_of, writes_of
from fp16doctor.record.usage.calls import Attempt
from fp16doctor.record.usage.copies import Copies
from fp16doctor.record.usage.factors import LEAST_TWICE, Factors, is_inverse, is_ratio, plain_number
from fp16doctor.record.usage.gradient_states import GradientStates, Touch
from fp16doctor.record.usage.hooks import divided_inside
from fp16doctor.record.usage.resets import Resets, came_in_as_zero
from fp16doctor.record.usage.step_view import (
    PRODUCTS,
    UNSCALE,
    Backward,
    Seen,
    StepView,
    base_of,
    number_factor,
)
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import BESIDE_SCALED, CLIPPED, UsageKind

_NORMS = frozenset({"norm", "linalg_vector_norm", "linalg_norm"})
_CLAMPS = frozenset({"clamp", "clamp_min", "clamp_max", "clip"})
_READ_BACK = frozenset({"aten._local_scalar_dense.default", "aten.is_nonzero.default"})


def follow(view: StepView, unscaled: set[int], mixed: dict[int, Seen]) -> Iterator[Seen]:
    """Yield what was done to scaled gradients.

    ``unscaled`` and ``mixed`` outlive the step: they go in and come out up to date.
    """
    walk = _Walk(view, GradientStates(unscaled=unscaled, mixed=mixed))
    yield from walk.run()


class _Walk:
    def __init__(self, view: StepView, states: GradientStates) -> None:
        self._view, self._now = view, states
        taken = (n for attempt in view.calls.attempts for n in attempt.gradients)
        self._gradients = {*view.marks.gradients, *taken}
        self._resets = Resets(view.roll, view.marks.gradients)
        self._copies, self._factors = Copies(self._gradients), Factors(view)
        self._inherited = set(states.unscaled)  # in an earlier step
        self._checked: set[int] = set()  # by the scaler, in this step
        self._again_at: set[Any] = set()  # lines that divide a second time

    def run(self) -> Iterator[Seen]:
        backwards, attempts = list(self._view.backwards), list(self._view.calls.attempts)
        for index, op in enumerate(self._view.ops):
            while backwards and backwards[0].last <= index:
                self._after_backward(backwards.pop(0))
            while attempts and attempts[0].first <= index:
                yield from self._attempt(attempts.pop(0))
            # Gradients are often set to zero between forward and backward.
            self._now.forget(self._resets.of(op))
            if op.where[3] not in (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD):
                yield from self._op(index, op)
        for backward in backwards:
            self._after_backward(backward)
        for attempt in attempts:
            yield from self._attempt(attempt)

    # -- backward --------------------------------------------------------------------------------

    def _after_backward(self, backward: Backward) -> None:
        ops, now = self._view.ops, self._now
        touched: set[int] = set()
        added: dict[int, int] = {}  # gradient -> op that added to it
        for index in range(backward.first, backward.last):
            touched |= writes_of(ops[index]) & self._gradients
            added.update({n: index for n in ops[index].written if n in self._gradients})
        mixed = {n: s for n, s in now.mixed.items() if n in added}  # more is added to these
        if backward.scaling.kind in ("scaler", "hand"):
            mixed.update(self._mixed(backward, added))
        plain = {n: i for n, i in now.plain.items() if n in added}  # stays a part of the sum
        carried = {n: s for n, s in now.scaled.items() if n in added and n not in now.divided}
        now.forget(touched)
        now.mixed.update(mixed)
        now.plain.update(plain)
        if backward.scaling.kind == "none" and backward.seed is not None:
            now.plain.update(dict.fromkeys(touched, backward.seed))
            now.scaled.update(carried)
        else:
            now.scaled.update(dict.fromkeys(touched, backward.scaling))
            now.divided |= touched & divided_inside(self._view, backward)

    def _mixed(self, backward: Backward, added: dict[int, int]) -> dict[int, Seen]:
        """Gradients that were unscaled, and that scaled ones were added to."""
        numbers = {n for n in added.keys() & self._now.unscaled if not self._is_zero(n)}
        if not numbers:
            return {}
        index = backward.seed or min(added[n] for n in numbers)
        seen = self._seen(UsageKind.MIXED_SCALES, index, Phase.BACKWARD)
        return dict.fromkeys(numbers, dataclasses.replace(seen, step=self._view.roll.step))

    def _is_zero(self, number: int) -> bool:
        return number in self._inherited and came_in_as_zero(self._view.roll, number)

    def _used(self, gradients: Iterable[int]) -> Iterator[Seen]:
        """Yield each backward whose mixed sums are used now; a GAN's are dropped instead."""
        mixed = self._now.mixed
        used = {id(mixed[n]): mixed[n] for n in gradients if n in mixed}
        for number in [n for n, seen in mixed.items() if id(seen) in used]:
            del mixed[number]
        yield from used.values()

    # -- between backward and the update ---------------------------------------------------------

    def _op(self, index: int, op: RawOp) -> Iterator[Seen]:
        now = self._now
        if op.info.name == UNSCALE:
            yield from self._unscale(index, set(op.written) & self._gradients)
            return
        written = set(op.written) & self._gradients
        if now.mixed and not self._view.roll.params.keys().isdisjoint(op.written):
            yield from self._used(reads_of(op))  # an update by hand
        if self._view.calls.inside_attempt(index):
            return
        for made in self._copies.of(op):
            now.inherit(made.new, made.old)
            if made.factor != 1:
                yield from self._again(index, op, {made.new}, made.factor)
                yield from self._product(index, op, {made.new}, made.factor)
        reads = reads_of(op)
        again = written & (now.unscaled | now.divided)
        if again and base_of(op) in PRODUCTS:
            yield from self._again(index, op, again, self._factors.of(index, op))
        mine = reads & now.scaled.keys() - now.divided
        if mine & written:
            yield from self._write(index, op, mine & written)
        elif mine or not now.derived.isdisjoint(reads):
            self._read(index, op, mine, reads)

    def _read(self, index: int, op: RawOp, mine: set[int], reads: set[int]) -> None:
        now = self._now
        if op.info.name in _READ_BACK:
            now.read_back = True
            return
        made = writes_of(op)
        now.derived |= made
        if mine and base_of(op) in _NORMS:
            now.touches.append(Touch(UsageKind.SCALED_NORM, op, index, mine))
        value = plain_number(op)
        known = [now.limits[n] for n in reads if n in now.limits]
        if base_of(op) in PRODUCTS and value is not None:
            known = [value]
        now.limits.update(dict.fromkeys(made, known[0]) if known else {})

    def _write(self, index: int, op: RawOp, mine: set[int]) -> Iterator[Seen]:
        base = base_of(op)
        if base in _CLAMPS:
            self._clip(Touch(UsageKind.SCALED_CLIP, op, index, mine, plain_number(op)))
        elif base in PRODUCTS:
            yield from self._product(index, op, mine, number_factor(op))

    def _product(
        self, index: int, op: RawOp, gradients: set[int], factor: float | None
    ) -> Iterator[Seen]:
        """``gradients`` were multiplied by ``factor``, None where a tensor holds it."""
        now = self._now
        mine = gradients & now.scaled.keys() - now.divided
        if not mine:
            return
        if factor is not None:
            yield from self._constant_factor(index, op, mine, factor)
        elif reads_of(op) & now.derived:
            limit = next((now.limits[n] for n in reads_of(op) if n in now.limits), None)
            self._clip(Touch(UsageKind.SCALED_CLIP, op, index, mine, limit))
        else:
            now.divided |= mine  # by something unknown, which may be the scale

    def _constant_factor(
        self, index: int, op: RawOp, mine: set[int], factor: float
    ) -> Iterator[Seen]:
        now = self._now
        scale = self._scale_of(mine)
        if not factor:
            return  # a whole gradient has started afresh, a part of it tells nothing
        if scale is None:
            now.forget(mine)
        elif is_inverse(factor, scale):
            yield from self._confirm(mine)
            now.divided |= mine
        elif not now.read_back and factor * factor * scale < 1:
            # Nearer to the scale than to 1: the scale and an average in one number.
            yield from self._confirm(mine)
            now.forget(mine)
        elif now.read_back and not is_ratio(factor):
            self._clip(Touch(UsageKind.SCALED_CLIP, op, index, mine, factor=abs(factor)))

    def _again(
        self, index: int, op: RawOp, gradients: set[int], factor: float | None
    ) -> Iterator[Seen]:
        """Tell of a division by the scale where the scale was divided out before."""
        now = self._now
        if factor is None or gradients.isdisjoint(now.unscaled | now.divided):
            return
        if op.where[:2] in self._again_at:  # one parameter after the other
            return
        scale = self._scale_of(gradients) or self._view.scale()
        if scale is not None and scale >= LEAST_TWICE and is_inverse(factor, scale):
            self._again_at.add(op.where[:2])
            facts = {"detail": base_of(op), "loss_scale": scale}
            yield self._seen(UsageKind.UNSCALED_TWICE, index, Phase.OPTIMIZER, **facts)

    def _clip(self, touch: Touch) -> None:
        self._now.touches.append(touch)
        self._now.clipped |= touch.gradients

    def _unscale(self, index: int, gradients: set[int]) -> Iterator[Seen]:
        now = self._now
        yield from self._used(gradients)
        self._inherited -= gradients
        again = gradients & (now.divided | now.unscaled)
        known = {n for n in again if n in now.unscaled or self._scale_of({n}) is not None}
        if known:
            yield self._seen(UsageKind.UNSCALED_TWICE, index, Phase.OPTIMIZER)
        yield from self._confirm(gradients)
        yield from self._never_scaled(index, gradients)
        now.forget(gradients)
        now.unscaled |= gradients
        if not self._view.calls.inside_attempt(index):
            self._checked |= gradients

    def _never_scaled(self, index: int, gradients: set[int]) -> Iterator[Seen]:
        """Tell of a backward whose loss did not carry the scale that is divided out now."""
        now, scale = self._now, self._view.scale()
        plain = {n: now.plain[n] for n in gradients if n in now.plain}
        if not plain or scale is None or scale < LEAST_TWICE:
            return
        optimizer = next((a.name for a in self._view.calls.attempts if a.last > index), "")
        beside = BESIDE_SCALED if now.scaled.keys() & plain.keys() else ""
        facts = {"optimizer": optimizer, "loss_scale": scale, "detail": beside}
        yield self._seen(UsageKind.NEVER_SCALED, min(plain.values()), Phase.BACKWARD, **facts)

    def _confirm(self, gradients: set[int]) -> Iterator[Seen]:
        """The scale leaves these gradients now: what was done to them before was done too early."""
        touches = [t for t in self._now.touches if t.gradients & gradients]
        clips = [t for t in touches if t.kind is UsageKind.SCALED_CLIP]
        if touches:
            yield self._touched((clips or touches)[0], clips)
        self._now.touches = [t for t in self._now.touches if t not in touches]

    def _touched(self, touch: Touch, clips: list[Touch]) -> Seen:
        facts: dict[str, Any] = {"limit": touch.limit, "detail": base_of(touch.op)}
        facts["clips"] = [c.index for c in clips]
        facts["coefficient"] = min((c.factor for c in clips if c.factor is not None), default=None)
        return self._seen(touch.kind, touch.index, Phase.OPTIMIZER, **facts)

    # -- the update ------------------------------------------------------------------------------

    def _attempt(self, attempt: Attempt) -> Iterator[Seen]:
        if not attempt.closure:  # a closure may set them to zero first
            yield from self._used(attempt.gradients)
        if attempt.by_scaler or attempt.closure:
            self._checked -= set(attempt.gradients)
            return
        now = self._now
        if attempt.gradients and self._checked.issuperset(attempt.gradients):
            yield self._at(attempt, UsageKind.UNCHECKED_STEP, loss_scale=self._view.scale())
        mine = [n for n in attempt.gradients if n in now.scaled]
        raw = [n for n in mine if n not in now.divided and now.scaled[n].kind != "unknown"]
        if not raw or len(raw) < len(mine) or len(raw) * 2 < len(attempt.gradients):
            return
        facts = self._scale_facts(set(raw))
        if now.clipped & set(raw):
            facts["detail"] = CLIPPED
        yield self._at(attempt, UsageKind.NEVER_UNSCALED, **facts)

    def _at(self, attempt: Attempt, kind: UsageKind, **facts: Any) -> Seen:
        facts["optimizer"] = attempt.name
        return Seen(kind, attempt.where, attempt.first, Phase.OPTIMIZER, facts=facts)

    # -- common ----------------------------------------------------------------------------------

    def _scale_of(self, gradients: set[int]) -> float | None:
        scaling = next((self._now.scaled[n] for n in gradients if n in self._now.scaled), None)
        if scaling is None or scaling.kind == "unknown":
            return None
        return scaling.factor if scaling.kind == "hand" else self._view.scale()

    def _scale_facts(self, gradients: set[int]) -> dict[str, Any]:
        kinds = {self._now.scaled[n].kind for n in gradients if n in self._now.scaled}
        return {"loss_scale": self._scale_of(gradients), "by_hand": "hand" in kinds}

    def _seen(self, kind: UsageKind, index: int, phase: Phase, **facts: Any) -> Seen:
        op = self._view.ops[index]
        facts.setdefault("loss_scale", self._view.scale())
        return Seen(kind, op.where, index, phase, op.info.name, facts)
