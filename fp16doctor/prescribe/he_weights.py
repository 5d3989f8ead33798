"""The first step again from He's initial weights.

Must not know how the step is judged.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from fp16doctor.prescribe.fixup_weights import SEED, own_shape, with_values
from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.layers import Nonlinearity, layers_of, nonlinearity_after
from fp16doctor.replay.parameters import parameter_numbers, parameter_values
from fp16doctor.schema.tape import Tape

LARGER = 2.0  # times He's standard deviation


def oversized_layers(tape: Tape) -> dict[str, Nonlinearity]:
    """Return the weights of at least twice He's size, and the nonlinearity behind each.

    {parameter FQN: what ``torch.nn.init`` calls the nonlinearity}, in order of use.
    """
    values, found = parameter_values(tape), dict[str, Nonlinearity]()
    for layer in layers_of(tape):
        if layer.name in values:
            size = float(values[layer.name].double().square().mean().sqrt())
            if size * (layer.fan_in / 2) ** 0.5 >= LARGER:
                found[layer.name] = nonlinearity_after(tape, layer)
    return found


def with_he(tape: Tape, weights: dict[str, Nonlinearity]) -> Tape:
    """Return the tape with these weights drawn by ``torch.nn.init.kaiming_normal_``."""
    numbers, leaves, producers = parameter_numbers(tape), dict(tape.leaves), producers_of(tape)
    generator = torch.Generator().manual_seed(SEED)
    for name, nonlinearity in weights.items():
        ref = producers.widest_view(numbers.get(name, -1))
        if ref is not None:
            drawn = torch.empty(own_shape(ref))
            nn.init.kaiming_normal_(drawn, nonlinearity=nonlinearity, generator=generator)
            leaves[numbers[name]] = with_values(leaves[numbers[name]], drawn, ref)
    return replace(tape, leaves=leaves)
