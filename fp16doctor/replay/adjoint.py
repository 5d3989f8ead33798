"""How an error in each op's result moves the step's results: one sweep from end to start.

The recorded program itself is differentiated, forward and backward as one, op by op. It is done on
the values of the fp32 replay and once more with all errors put in; the mean of both is exact to
second order, and sees what one end alone does not (a softmax that is saturated there). What
autograd computed in the run would not do: it is the derivative that the
script asked for (a ``detach``, a straight-through estimator, a custom function), it ends at the
loss, and it lacks whatever backward itself rounds.

An adjoint belongs to a storage, so that views need no rule; what an op writes in place is put
back before the ops in front of it are looked at.

Must not know how errors came about.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fp16doctor.replay import op_traits
from fp16doctor.replay.calls import (
    ToTensor,
    arguments,
    float_inputs,
    invoke,
    outputs_of,
    paired,
    written_pairs,
)
from fp16doctor.replay.casting import REFUSALS, dropped
from fp16doctor.replay.environment import Live, is_float_ref, torch_dtype
from fp16doctor.replay.local_errors import Errors, end_of, is_view
from fp16doctor.replay.second_derivatives import written_out
from fp16doctor.replay.solo import SoloPlayer
from fp16doctor.schema.policy import FP32
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

Pairs = list[tuple[TensorRef, Tensor]]
Place = tuple[int, tuple[int, ...], tuple[int, ...], int]
Arrived = dict[Place, tuple[TensorRef, Tensor]]  # adjoints of an op's results


@dataclass(slots=True)
class Influence:
    """What one sweep found."""

    shares: dict[int, float] = field(default_factory=dict)  # op -> ⟨adjoint of result, its error⟩
    stops: set[str] = field(default_factory=set)  # ops that cannot be differentiated


def influence(tape: Tape, errors: Errors, seeds: Pairs) -> Influence:
    """Return ⟨adjoint, error⟩ of every op that erred; ``seeds`` are adjoints of the results.

    Raises ReplayError where the step cannot be played in fp32. The caller holds the random state.
    """
    found = Influence()
    for put_in in ({}, errors):
        sweep = _Sweep(tape, put_in)
        for ref, seed in seeds:
            sweep.add(ref, seed)
        for index, share in sweep.back(errors).items():
            found.shares[index] = found.shares.get(index, 0.0) + share / 2
        found.stops |= sweep.stops
    return found


class _Sweep:
    def __init__(self, tape: Tape, put_in: Errors) -> None:
        self._tape, self._end = tape, end_of(tape)
        self._player = SoloPlayer(tape, FP32)
        self._overwritten: dict[int, list[tuple[int, Live]]] = {}
        self._adjoints: dict[int, tuple[str, Tensor]] = {}  # storage -> (dtype, flat)
        self.stops: set[str] = set()
        for call in tape.ops[: self._end]:
            self._keep(call)
            self._player.play(call)
            for ref, error in put_in.get(call.index, ()):
                self._player.env.tensor(ref).add_(error)

    def _keep(self, call: OpCall) -> None:
        """Copy what an op is about to write."""
        for ref in refs_in((call.args, call.kwargs)):
            if ref.storage in call.mutates:
                self._player.env.tensor(ref)
                live = self._player.env.live(ref.storage)
                if live is not None:
                    copy = Live(live.storage.clone(), live.recorded, live.live)
                    self._overwritten.setdefault(call.index, []).append((ref.storage, copy))

    def add(self, ref: TensorRef, value: Tensor) -> None:
        """Add to the adjoint of a tensor; ``value`` has the shape of ``ref``."""
        view = self._view(ref, make=True)
        if view is None:
            return
        shared = [d for d, s in enumerate(ref.stride) if s == 0 and ref.shape[d] > 1]
        if shared:  # an expanded dimension is one element
            value = value.sum(shared, keepdim=True)
            first = tuple(slice(0, 1) if d in shared else slice(None) for d in range(view.dim()))
            view = view[first]
        view.add_(value.nan_to_num(0.0, 0.0, 0.0))

    def _view(self, ref: TensorRef, *, make: bool = False) -> Tensor | None:
        if not is_float_ref(ref) or torch_dtype(ref.dtype).is_complex:
            return None
        if ref.storage not in self._adjoints and make:
            live = self._player.env.live(ref.storage)
            if live is None:
                return None
            size = live.storage.nbytes() // live.live.itemsize
            flat = torch.zeros(size, device=live.storage.device)
            self._adjoints[ref.storage] = ref.dtype, flat
        dtype, flat = self._adjoints.get(ref.storage, ("", torch.empty(0)))
        return flat.as_strided(ref.shape, ref.stride, ref.offset) if dtype == ref.dtype else None

    def back(self, errors: Errors) -> dict[int, float]:
        """Go from the last op to the first; return the shares of those that erred."""
        shares: dict[int, float] = {}
        for call in reversed(self._tape.ops[: self._end]):
            for number, live in self._overwritten.get(call.index, ()):
                self._player.env.adopt(number, live)
            if is_view(call):
                continue
            views = ((r, self._view(r)) for r in outputs_of(call))
            arrived = {_place(r): (r, a.clone()) for r, a in views if a is not None}
            if not arrived:
                continue
            errs = [(p, e) for r, e in errors.get(call.index, ()) if (p := _place(r)) in arrived]
            shares[call.index] = sum(_dot(arrived[p][1], e) for p, e in errs)
            self._pass_on(call, arrived)
        return shares

    def _pass_on(self, call: OpCall, arrived: Arrived) -> None:
        for ref, _ in arrived.values():
            if ref.storage in call.mutates:
                view = self._view(ref)
                if view is not None:
                    view.zero_()
            else:
                self._adjoints.pop(ref.storage, None)
        if call.opaque or op_traits.is_draw(call.op) or op_traits.is_uninitialised(call.op):
            return
        if op_traits.keeps_format(call.op):  # its workspace was laid out for the recorded format
            self.stops.add(call.op)
            return
        for ref, value in self._derived(call, arrived):
            self.add(ref, value)

    def _derived(self, call: OpCall, arrived: Arrived) -> Pairs:
        """Return the adjoints of an op's inputs, as far as torch knows their derivatives.

        Backward ops lack those of what their forward saved (statistics, weights of a sum); the
        others are had one by one.
        """
        try:
            return self._derivatives(call, arrived, None)
        except REFUSALS:
            known: Pairs = []
        for ref in dict.fromkeys(float_inputs(call)):
            try:
                known += self._derivatives(call, arrived, ref)
            except REFUSALS:
                self.stops.add(call.op)
        return known

    def _derivatives(self, call: OpCall, arrived: Arrived, only: TensorRef | None) -> Pairs:
        inputs: dict[TensorRef, Tensor] = {}

        def given(ref: TensorRef) -> Tensor:
            value = self._player.env.tensor(ref).detach().clone()
            if not value.is_floating_point() or only not in (None, ref):
                return value
            inputs[ref] = value.requires_grad_()
            return value.clone() if ref.storage in call.mutates else value

        with torch.enable_grad():
            outs = [
                (arrived[p][1], t)
                for r, t in self._run(call, given)
                if (p := _place(r)) in arrived and t.requires_grad
            ]
            if not outs:
                return []
            derived = torch.autograd.grad(
                [t for _, t in outs],
                list(inputs.values()),
                [a.to(t.dtype) for a, t in outs],
                allow_unused=True,
            )
        pairs = zip(inputs, derived, strict=True)
        return [(r, d.float()) for r, d in pairs if d is not None]

    def _run(self, call: OpCall, given: ToTensor) -> Pairs:
        if op_traits.is_dropout(call.op):
            output, mask = refs_in(call.outputs)
            return [(output, dropped(call, given(call.args[0]), self._player.env.tensor(mask)))]
        args = arguments(call, given, self._player.env.wide)
        second = written_out(call.op)
        result = invoke(call, args) if second is None else second(*args[0], **args[1])
        fresh = [(r, t) for r, t in paired(call.outputs, result) if r.storage not in call.mutates]
        return fresh + written_pairs(call, args)


def _place(ref: TensorRef) -> Place:
    """A tensor whatever its version: an op names what it writes before and behind the write."""
    return ref.storage, ref.shape, ref.stride, ref.offset


def _dot(adjoint: Tensor, error: Tensor) -> float:
    return float((adjoint.double() * error.double()).nan_to_num(0.0, 0.0, 0.0).sum())
