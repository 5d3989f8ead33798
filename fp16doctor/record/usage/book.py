"""Owner of the usage facts of a run: asks every kind at the closing of each step, keeps the facts.

Must not know any rule.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fp16doctor.record.usage.attempts import stepped_twice
from fp16doctor.record.usage.calls import Calls
from fp16doctor.record.usage.gradients import follow
from fp16doctor.record.usage.hooks import is_product
from fp16doctor.record.usage.injections import injections
from fp16doctor.record.usage.penalties import scaled_penalties
from fp16doctor.record.usage.run_facts import RunFacts
from fp16doctor.record.usage.scaling import scaler_with_bf16, without_scale
from fp16doctor.record.usage.softmax_logs import softmax_then_log
from fp16doctor.record.usage.stale_casts import Casts, remember_casts, stale_casts
from fp16doctor.record.usage.step_view import Seen, StepView
from fp16doctor.record.usage.watch import CallWatch
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.usage import UsageFact, UsageKind

if TYPE_CHECKING:
    from torch import Tensor

    from fp16doctor.record.recorder import Recorder
    from fp16doctor.record.roll import RawOp, Roll
    from fp16doctor.record.weak_storage import WeakStorage

EVERY_STEP = 32  # so many steps are looked at one by one ...
PERIOD = 8  # ... after that two neighbours of so many: some kinds compare a step with the last
_CONSTANTS = frozenset(
    f"aten.{name}.default"
    for name in ("ones_like", "ones", "new_ones", "full", "full_like", "new_full")
)
_FACTORS = frozenset({"aten._foreach_mul_.Tensor", "aten.mul_.Tensor", "aten.div_.Tensor"})

_KINDS: tuple[Callable[[StepView], Iterator[Seen]], ...] = (
    stepped_twice,
    without_scale,
    scaler_with_bf16,
    injections,
    scaled_penalties,
    softmax_then_log,
)


class UsageBook:
    """Facts about the use of mixed precision, first occurrences with counts."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._calls = Calls()
        self.watch = CallWatch(recorder, self._calls, self._active)
        self.run = RunFacts()
        self._facts: dict[tuple[Any, ...], UsageFact] = {}
        self._unscaled: dict[int, WeakStorage] = {}  # gradients unscaled in an earlier step
        self._mixed: dict[int, tuple[WeakStorage, Seen]] = {}  # sums of two scales, not used yet
        self._casts: Casts = {}
        self._looked_at: int | None = None
        self._thread = 0
        self._on = False

    @property
    def facts(self) -> tuple[UsageFact, ...]:
        """Everything seen so far, in order of its first occurrence."""
        return tuple(self._facts.values())

    def attach(self) -> None:
        """Begin to notice calls."""
        self._thread, self._on = threading.get_ident(), True
        self.watch.attach()

    def detach(self) -> None:
        """Stop noticing calls; the facts stay."""
        self.watch.detach()
        self._on = False

    def _active(self) -> bool:
        return self._on and self._recorder.recording and threading.get_ident() == self._thread

    def model_called(self) -> None:
        """A root module of the script is about to run."""
        if self._on:
            self.run.model_called()

    def begin(self) -> None:
        """Open a new step."""
        self._calls.clear()
        self.watch.begin()

    def before(self, op: RawOp) -> None:
        """Keep the line of a constant made inside backward, which may stand in a custom one.

        Of a product, whether Python runs it: a hook may divide by the scale.
        """
        if op.where[3] is not Phase.BACKWARD:
            return
        lines, index = self._recorder.lines, len(self._recorder.roll.ops)
        if op.info.name in _CONSTANTS:
            self._calls.lines[index] = lines.key(sys._getframe(1))
        elif is_product(op.info.name) and lines.within_backward(sys._getframe(1))[0] is not None:
            self._calls.hooked.add(index)

    def written(self, op: RawOp, args: tuple[Any, ...]) -> None:
        """Keep the factor that an op is about to apply to gradients: it is read only if needed."""
        if op.where[3] is Phase.OPTIMIZER and op.info.name in _FACTORS and len(args) > 1:
            self._keep_factor(args[1])

    def _keep_factor(self, factor: Tensor | Any) -> None:
        if hasattr(factor, "numel") and factor.numel() == 1:
            self._calls.coefficients[len(self._recorder.roll.ops)] = factor.detach()

    # -- the closing of a step -------------------------------------------------------------------

    def close(self) -> None:
        """Look at the step that is being closed; a fault of ours costs the usage facts only."""
        if not self._on:
            return
        try:
            self._close()
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the script
            self._on = False
            self._recorder.caution(
                "usage-stopped",
                f"the use of mixed precision was not looked at from step {self._recorder.n_steps} "
                f"on: {type(error).__name__}: {error}",
            )

    def _close(self) -> None:
        recorder = self._recorder
        number = recorder.n_steps
        if recorder.truncated or not _worth_looking(number) or not recorder.steps.attempted:
            return
        if self._looked_at is None or number - self._looked_at != 1:
            self._unscaled, self._mixed, self._casts = {}, {}, {}
        self._looked_at = number
        view = StepView(recorder.roll, recorder.book.marks, self._calls, self._scale)
        self.run.step_closed(view, self._parameters())
        for seen in self._all(view):
            self._add(seen)

    def _parameters(self) -> list[Tensor]:
        recorder = self._recorder
        named = (p for root in recorder.modules.roots() for p in root.parameters())
        found = {id(p): p for p in named if p.requires_grad}
        return list(found.values()) or list(recorder.roll.params.values())

    def _all(self, view: StepView) -> Iterator[Seen]:
        for kind in _KINDS:
            yield from kind(view)
        yield from stale_casts(view, self._casts)
        remember_casts(view, self._casts)
        yield from self._gradients(view)

    def _gradients(self, view: StepView) -> Iterator[Seen]:
        roll = view.roll
        unscaled = {roll.ids[a] for a in self._unscaled if a in roll.ids}
        mixed = {roll.ids[a]: s for a, (_, s) in self._mixed.items() if a in roll.ids}
        yield from follow(view, unscaled, mixed)
        kept = {n: roll.weak[n] for n in unscaled if n in roll.weak}
        self._unscaled = {w.cdata: w for w in kept.values() if not w.expired()}
        self._keep_mixed(roll, mixed)

    def _keep_mixed(self, roll: Roll, mixed: dict[int, Seen]) -> None:
        """Keep those alive, and those that this step did not touch."""
        now = {a: (w, s) for a, (w, s) in self._mixed.items() if a not in roll.ids}
        now |= {roll.weak[n].cdata: (roll.weak[n], s) for n, s in mixed.items()}
        self._mixed = {a: (w, s) for a, (w, s) in now.items() if not w.expired()}

    def _scale(self) -> float | None:
        """GradScaler's scale in this step: as booked, else as it was applied to a loss."""
        steps = self._recorder.book.steps
        if steps and steps[-1].step == self._recorder.roll.step and steps[-1].loss_scale:
            return steps[-1].loss_scale
        scaled = self._calls.scaled
        return float(scaled[0].scale.item()) if scaled else None

    def _add(self, seen: Seen) -> None:
        key = (seen.kind, seen.where[:2], seen.op)
        facts = dict(seen.facts)
        coefficient = self._coefficient(facts.pop("clips", ()), facts.pop("coefficient", None))
        known = self._facts.get(key)
        if known is None:
            site = self._site(seen)
            self._facts[key] = UsageFact(seen.kind, site, coefficient=coefficient, **facts)
            return
        if coefficient is not None and known.coefficient is not None:
            coefficient = min(coefficient, known.coefficient)
        self._facts[key] = dataclasses.replace(
            known,
            steps=known.steps + 1,
            coefficient=coefficient if coefficient is not None else known.coefficient,
        )

    def _coefficient(self, clips: Any, constant: float | None) -> float | None:
        kept = self._calls.coefficients
        values = [float(kept[i].item()) for i in clips if i in kept]
        values += [] if constant is None else [constant]
        return min(values) if values else None

    def _site(self, seen: Seen) -> OpSite:
        source, caller, module, _ = seen.where
        lines = self._recorder.lines
        return OpSite(
            step=self._recorder.roll.step if seen.step is None else seen.step,
            phase=seen.phase,
            op=seen.op,
            index=seen.index,
            module_path=module.path if module else None,
            module_class=module.class_name if module else None,
            source=lines.line(source),
            caller=lines.line(caller),
        )

    # -- at the end ------------------------------------------------------------------------------

    def not_in_effect(self) -> tuple[UsageFact, ...]:
        """What the script asked for and torch switched off, once a line."""
        found: dict[tuple[Any, ...], UsageFact] = {}
        for asked in self.watch.asked:
            key = (asked.what, asked.where[:2])
            lines = self._recorder.lines
            site = OpSite(
                step=-1,
                phase=Phase.SCRIPT,
                op="",
                index=-1,
                source=lines.line(asked.where[0]),
                caller=lines.line(asked.where[1]),
            )
            found.setdefault(
                key,
                UsageFact(
                    UsageKind.NOT_IN_EFFECT, site, detail=asked.what, format=_short(asked.dtype)
                ),
            )
        return tuple(found.values())


def _worth_looking(step: int) -> bool:
    return step < EVERY_STEP or step % PERIOD < 2


def _short(dtype: str) -> str:
    return {"float16": "fp16", "bfloat16": "bf16"}.get(dtype, dtype)
