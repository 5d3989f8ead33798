"""Layers with weights on a tape: which parameter, how many inputs, what nonlinearity follows.

Must not know what weights are right.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, prod
from typing import Literal

from torch import Tensor

from fp16doctor.replay.dataflow import Producers, producers_of
from fp16doctor.replay.lockstep import Observer
from fp16doctor.replay.op_traits import base
from fp16doctor.replay.player import Player
from fp16doctor.schema.layers import LayerGain
from fp16doctor.schema.location import Phase
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

FIRST_STEP = 0  # later ones tell of training, not of the initial weights
_CASTS = ("_to_copy", "clone", "copy_")
# op -> (position of the input, position of the weight)
_PLACES = {"addmm": (1, 2), "mm": (0, 1), "convolution": (0, 1), "linear": (0, 1)}
# Names that ``torch.nn.init`` knows; the smooth relatives of ReLU halve the mean square as it does.
Nonlinearity = Literal["linear", "tanh", "sigmoid", "relu", "selu"]
_NONLINEAR: dict[str, Nonlinearity] = {
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "selu": "selu",
    "relu": "relu",
    "relu_": "relu",
    "threshold": "relu",
    "clamp_min": "relu",
    "gelu": "relu",
    "silu": "relu",
    "leaky_relu": "relu",
    "elu": "relu",
    "hardswish": "relu",
}
_LOOK_AHEAD = 8  # ops from a layer to its nonlinearity: casts, dropout, a reshape


@dataclass(frozen=True, slots=True)
class Layer:
    """One use of a weight in the forward pass."""

    call: OpCall
    input: TensorRef
    weight: TensorRef
    name: str  # parameter FQN

    @property
    def fan_in(self) -> int:
        """Products summed up in one output element."""
        if base(self.call.op) == "convolution":
            return prod(self.weight.shape[1:])
        return self.input.shape[-1]


def layers_of(tape: Tape) -> tuple[Layer, ...]:
    """Return the layers of the forward pass in order; a weight that is computed is none."""
    producers = producers_of(tape)
    found = (_layer(tape, producers, c) for c in tape.ops if c.site.phase is Phase.FORWARD)
    return tuple(layer for layer in found if layer is not None)


def nonlinearity_after(tape: Tape, layer: Layer) -> Nonlinearity:
    """Return what ``torch.nn.init`` calls the function a layer's output goes through next.

    "linear" where nothing of the kind follows, as behind the last layer.
    """
    number = refs_in(layer.call.outputs)[0].storage
    for call in tape.ops[layer.call.index + 1 :][:_LOOK_AHEAD]:
        if number in {r.storage for r in refs_in((call.args, call.kwargs))}:
            known = _NONLINEAR.get(base(call.op))
            if known is not None or base(call.op) in _PLACES:
                return known or "linear"
            made = refs_in(call.outputs)
            number = made[0].storage if made else number
    return "linear"


class LayerObserver(Observer):
    """Collects the gains of a first step, as they are in the reference."""

    def __init__(self, tape: Tape) -> None:
        known = layers_of(tape) if tape.step == FIRST_STEP else ()
        self._layers = {layer.call.index: layer for layer in known}
        self.gains: list[LayerGain] = []

    def after(self, call: OpCall, run: Player, reference: Player | None) -> None:
        """Measure one layer."""
        layer = self._layers.get(call.index)
        if layer is None or reference is None:
            return
        tensor = reference.env.tensor
        sizes = [_rms(tensor(r)) for r in (layer.weight, layer.input, refs_in(call.outputs)[0])]
        if all(isfinite(s) and s > 0 for s in sizes):
            self.gains.append(LayerGain(call.site, layer.name, layer.fan_in, *sizes))


def _layer(tape: Tape, producers: Producers, call: OpCall) -> Layer | None:
    places = _PLACES.get(base(call.op))
    if places is None or len(call.args) <= max(places):
        return None
    given, weight = (call.args[i] for i in places)
    if not (isinstance(given, TensorRef) and isinstance(weight, TensorRef)):
        return None
    name = _parameter(tape, producers, weight, call.index)
    return None if name is None else Layer(call, given, weight, name)


def _parameter(tape: Tape, producers: Producers, ref: TensorRef, before: int) -> str | None:
    """Return the name of the parameter that a tensor is, or is a cast of."""
    index = producers.last_writer(ref.storage, before)
    if index is not None and base(tape.ops[index].op) in _CASTS:
        sources = refs_in(tape.ops[index].args)
        ref, index = sources[-1], producers.last_writer(sources[-1].storage, index)
    leaf = tape.leaves.get(ref.storage) if index is None else None
    return leaf.name if leaf is not None and leaf.is_parameter else None


def _rms(value: Tensor) -> float:
    return float(value.double().square().mean().sqrt())
