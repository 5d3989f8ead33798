"""Loss, gradients, parameters and buffers in both replays.

Gradients are looked at twice: where backward ends, and as the optimizer takes them, behind
unscaling, clipping and whatever the script does to them.

Must not know how non-finite values got there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from fp16doctor.replay.lockstep import LockstepResult, Observer
from fp16doctor.replay.player import Player
from fp16doctor.replay.values import as_real
from fp16doctor.schema.tape import Tape, TensorRef, refs_in
from fp16doctor.schema.trace import SinkState


@dataclass(slots=True)
class _Sums:
    total: int = 0
    bad: int = 0
    bad_reference: int = 0
    zeros: int = 0
    zeros_reference: int = 0
    error2: float = 0.0
    norm2: float = 0.0
    amax: float | None = None
    worst: str | None = None
    worst_error: float = -1.0
    bad_storages: set[int] = field(default_factory=set)

    def add(self, number: int, name: str, mine: Tensor, other: Tensor) -> None:
        a, b = as_real(mine).double(), as_real(other).double()
        good_a, good_b = torch.isfinite(a), torch.isfinite(b)
        bad = int((~good_a).sum())
        self.total += a.numel()
        self.bad += bad
        self.bad_reference += int((~good_b).sum())
        self.zeros += int((a == 0).sum())
        self.zeros_reference += int((b == 0).sum())
        both = good_a & good_b
        error2 = float(((a - b)[both] ** 2).sum())
        norm2 = float((b[both] ** 2).sum())
        self.error2, self.norm2 = self.error2 + error2, self.norm2 + norm2
        if bool(good_b.any()):
            self.amax = max(self.amax or 0.0, float(b[good_b].abs().max()))
        if bad:
            self.bad_storages.add(number)
        badness = float("inf") if bad else error2
        if badness > self.worst_error:
            self.worst, self.worst_error = name, badness

    def state(self, sink: str) -> SinkState:
        error = (self.error2 / self.norm2) ** 0.5 if self.norm2 > 0 else None
        return SinkState(
            sink, self.total, self.bad, self.bad_reference, error,
            self.zeros, self.zeros_reference, self.amax, self.worst,
        )  # fmt: skip


class SinkObserver(Observer):
    """Measures gradients where the last backward ended, parameters and buffers at the end."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._gradients_at = tape.backward_ends[-1] if tape.backward_ends else None
        self._sums: dict[str, _Sums] = {}
        self._views = _largest_views(tape)

    def before(self, index: int, run: Player, reference: Player | None) -> None:
        """Measure where the tape says so."""
        if reference is None:
            return
        if index == self._gradients_at:
            self._measure("gradients", self._tape.gradients, run, reference)
        if index == self._tape.optimizer_at:
            self._measure("applied gradients", self._tape.gradients, run, reference)
        if index == len(self._tape.ops):
            for sink, names in _state_names(self._tape).items():
                self._measure(sink, names, run, reference)

    def _measure(self, sink: str, names: dict[int, str], run: Player, reference: Player) -> None:
        sums = self._sums[sink] = _Sums()
        for number, name in names.items():
            ref = self._views.get(number)
            if ref is None or not (run.env.has(number) and reference.env.has(number)):
                continue
            mine, other = run.env.tensor(ref), reference.env.tensor(ref)
            if mine.is_floating_point() or mine.is_complex():
                sums.add(number, name, mine, other)

    def bad(self, sink: str) -> set[int]:
        """Return the storages of a sink that are non-finite as run."""
        return self._sums[sink].bad_storages if sink in self._sums else set()

    def states(self, result: LockstepResult) -> tuple[SinkState, ...]:
        """Return all sinks that were measured, the loss first."""
        states = [s.state(name) for name, s in self._sums.items() if s.total]
        loss = _loss_state(result)
        return tuple(([loss] if loss else []) + states)


def _largest_views(tape: Tape) -> dict[int, TensorRef]:
    """Return the widest view of each storage: a kernel's workspace behind it is not a value."""
    views: dict[int, TensorRef] = {}
    for call in tape.ops:
        for ref in refs_in((call.args, call.kwargs, call.outputs)):
            known = views.get(ref.storage)
            if known is None or prod(ref.shape) > prod(known.shape):
                views[ref.storage] = ref
    return views


def _state_names(tape: Tape) -> dict[str, dict[int, str]]:
    """Return the parameters, and the buffers that the step writes: a mask of −inf is no state."""
    written = {n for call in tape.ops for n in call.mutates}
    named = {n: leaf.name or f"parameter {n}" for n, leaf in tape.leaves.items()}
    return {
        "parameters": {n: named[n] for n, leaf in tape.leaves.items() if leaf.is_parameter},
        "buffers": {
            n: named[n] for n, leaf in tape.leaves.items() if leaf.is_buffer and n in written
        },
    }


def _loss_state(result: LockstepResult) -> SinkState | None:
    pairs = [(a, b) for a, b in result.losses if b is not None]
    if not pairs:
        return None
    sums = _Sums()
    for a, b in pairs:
        sums.add(0, "loss", torch.tensor([a]).double(), torch.tensor([b]).double())
    return sums.state("loss")
