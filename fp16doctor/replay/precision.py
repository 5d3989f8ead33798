"""What the recorded formats did to values that stayed finite, measured beside the reference.

An observer of a lockstep run. Must not know bounds or words.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import torch
from torch import Tensor

from fp16doctor.formats.number_format import get_format
from fp16doctor.replay import op_traits
from fp16doctor.replay.addends import Addends
from fp16doctor.replay.amplified import Amplified
from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.integers import integer_loss, same_integers
from fp16doctor.replay.lockstep import Observer
from fp16doctor.replay.player import Player
from fp16doctor.replay.update_floor import update_floor
from fp16doctor.replay.updates import UpdateWatch
from fp16doctor.replay.values import FORMAT_NAMES, nonfinite_code, relative_error
from fp16doctor.schema.location import Phase
from fp16doctor.schema.precision import GradientLoss, IntegerLoss, OpLoss, PrecisionFacts
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

MAX_OPS = 40  # op losses kept of one step
SMALLEST_SHARE = 1e-3  # of Σ|x|: what less than this did is not kept
_HALF = (torch.float16, torch.bfloat16)
_PHASES = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD)


class PrecisionObserver(Observer):
    """Collects the facts of one step."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._producers = producers_of(tape)
        self.updates = UpdateWatch(tape)
        self._addends = Addends()
        self._amplified = Amplified(tape, self._producers)
        self._shares: dict[int, float] = {}  # storage -> lost share of its present value
        self._ops: dict[int, OpLoss] = {}
        self._gradients: list[GradientLoss] = []
        self._integers: list[IntegerLoss] = []
        self._gradients_at = tape.backward_ends[-1] if tape.backward_ends else None

    def before(self, index: int, run: Player, reference: Player | None) -> None:
        """Measure gradients where backward ended, updates at the end."""
        if reference is None:
            return
        if index == self._gradients_at:
            self._measure_gradients(run, reference)
            self._hand_over_gradients(run, reference)
        if index == len(self._tape.ops):
            self.updates.measure(run, reference)

    def after(self, call: OpCall, run: Player, reference: Player | None) -> None:
        """Measure the 16-bit outputs of one op."""
        if reference is None or call.site.phase not in _PHASES:
            return
        self._addends.used(call, run)
        if call.opaque or op_traits.is_uninitialised(call.op):
            return
        self._amplified.made(call, run, reference)
        inherited = max((self._shares.get(r.storage, 0.0) for r in _inputs(call)), default=0.0)
        for ref in _outputs(call):
            if torch_dtype(ref.dtype) in _HALF and run.env.has(ref.storage):
                mine, other = run.env.tensor(ref), reference.env.tensor(ref)
                self._measure_op(call, ref, mine, other, inherited)
                self._measure_error(call, mine, other, run, reference)
                found = integer_loss(call, ref, mine, other)
                if found is not None and same_integers(call, run, reference):
                    self._integers.append(found)
            else:
                self._shares[ref.storage] = inherited

    def facts(self) -> PrecisionFacts:
        """Return what was seen."""
        every = [replace(o, exposed_share=self._addends.exposed(i)) for i, o in self._ops.items()]
        kept = sorted(first_of_each_place(every), key=_weight, reverse=True)[:MAX_OPS]
        return PrecisionFacts(
            ops=tuple(sorted(kept, key=lambda o: o.site.index)),
            gradients=tuple(self._gradients),
            integers=tuple(self._integers),
            amplified=self._amplified.facts(),
            update_floor=update_floor(self._tape),
        )

    def _measure_op(
        self, call: OpCall, ref: TensorRef, mine: Tensor, other: Tensor, inherited: float
    ) -> None:
        fmt = get_format(FORMAT_NAMES[torch_dtype(ref.dtype)])
        size = other.double().abs()
        size = torch.where(torch.isfinite(size), size, torch.zeros_like(size))
        mass = float(size.sum())
        lost = (mine == 0) & (size != 0)
        share = float(size[lost].sum()) / mass if mass else 0.0
        self._shares[ref.storage] = share
        magnitude = mine.double().abs()
        subnormal = (magnitude > 0) & (magnitude < fmt.smallest_normal)
        faint = float(size[subnormal].sum()) / mass if mass else 0.0
        if max(share, faint) < SMALLEST_SHARE:
            return
        self._addends.made(call, ref, fmt)
        self._ops[call.index] = OpLoss(
            site=call.site,
            format=fmt.name,
            total=mine.numel(),
            underflows=int(lost.sum()),
            zeros_reference=int((size == 0).sum()),
            lost_share=share,
            inherited_share=inherited,
            subnormal_share=faint,
            amax_reference=float(size.max()) if size.numel() else 0.0,
        )

    def _measure_error(
        self, call: OpCall, mine: Tensor, other: Tensor, run: Player, reference: Player
    ) -> None:
        """Add to a kept loss how far result and inputs are from the reference's."""
        loss = self._ops.get(call.index)
        if loss is None:
            return
        given = (
            relative_error(run.env.tensor(r), reference.env.tensor(r))
            for r in _inputs(call)
            if r.storage not in call.mutates
            and run.env.has(r.storage)
            and reference.env.has(r.storage)
        )
        self._ops[call.index] = replace(
            loss,
            error=relative_error(mine, other),
            inherited_error=max(given, default=0.0),
        )

    def _measure_gradients(self, run: Player, reference: Player) -> None:
        for number, name in self._tape.gradients.items():
            ref = self._producers.widest_view(number)
            if ref is None or not run.env.has(number) or not reference.env.has(number):
                continue
            mine, other = run.env.tensor(ref), reference.env.tensor(ref)
            if mine.is_floating_point():
                site = self._worst_op(number)
                self._gradients.append(gradient_loss(name, mine, other, site))

    def _hand_over_gradients(self, run: Player, reference: Player) -> None:
        """Let the reference optimizer start from the run's gradients.

        What storage does to an update is asked here, not what compute did to the gradient. Where
        the run's gradients are not finite the reference keeps its own.
        """
        pairs = []
        for number in self._tape.gradients:
            ref = self._producers.widest_view(number)
            if ref is not None and run.env.has(number) and reference.env.has(number):
                pairs.append((run.env.tensor(ref), reference.env.tensor(ref)))
        if all(nonfinite_code(mine) == 0 for mine, _ in pairs):
            for mine, other in pairs:
                other.copy_(mine)

    def _worst_op(self, number: int) -> OpLoss | None:
        """Return the op on the way to a gradient that itself lost most."""
        end = self._gradients_at or 0
        on_the_way = self._producers.ancestors(number, end)
        losses = [self._ops[i] for i in on_the_way if i in self._ops]
        return max(losses, key=_own_share, default=None)


def gradient_loss(
    name: str, mine: Tensor, other: Tensor, worst: OpLoss | None = None
) -> GradientLoss:
    """Compare one gradient with the reference's; non-finite elements are left out."""
    a, b = mine.double(), other.double()
    good = torch.isfinite(a) & torch.isfinite(b)
    a, b = a[good], b[good]
    lost = (a == 0) & (b != 0)
    norm = float(b.norm())
    return GradientLoss(
        name=name,
        total=mine.numel(),
        underflows=int(lost.sum()),
        zeros=int((a == 0).sum()),
        zeros_reference=int((b == 0).sum()),
        mass=float(b.abs().sum()),
        lost_mass=float(b[lost].abs().sum()),
        error=float((a - b).norm()) / norm if norm else None,
        site=worst.site if worst is not None else None,
    )


def _own_share(loss: OpLoss) -> float:
    return loss.lost_share - loss.inherited_share


def first_of_each_place(losses: list[OpLoss]) -> list[OpLoss]:
    """Return the first op of each place that lost half as much as any there.

    Micro-batches and loops run the same line again: their repeats would crowd out other places.
    """
    worst: dict[Hashable, float] = {}
    for loss in losses:
        worst[_place(loss)] = max(worst.get(_place(loss), 0.0), _weight(loss))
    first: dict[Hashable, OpLoss] = {}
    for loss in losses:
        if 2 * _weight(loss) >= worst[_place(loss)]:
            first.setdefault(_place(loss), loss)
    return list(first.values())


def _place(loss: OpLoss) -> Hashable:
    site = loss.site
    return site.op, site.phase, site.module_path, site.source, loss.format


def _weight(loss: OpLoss) -> float:
    return max(loss.lost_share, loss.subnormal_share)


def _inputs(call: OpCall) -> list[TensorRef]:
    return refs_in((call.args, call.kwargs))


def _outputs(call: OpCall) -> list[TensorRef]:
    written = set(call.mutates)
    refs = refs_in(call.outputs)
    seen = {r.storage for r in refs}
    return refs + [r for r in _inputs(call) if r.storage in written and r.storage not in seen]
