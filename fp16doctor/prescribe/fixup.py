"""The first step again from other initial weights: Fixup's, He's.

Must not know how the step is judged.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from fp16doctor.replay.branches import Branches
from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.layers import Nonlinearity, layers_of, nonlinearity_after
from fp16doctor.replay.parameters import parameter_numbers, parameter_values
from fp16doctor.schema.tape import Leaf, Tape, TensorRef

LARGER = 2.0  # times He's standard deviation
SEED = 0  # of the weights that are tried


def fixup_factor(branches: Branches) -> float:
    """Return L^(−1/(2m−2)) for all layers of a branch but the last (arXiv 1901.09321, rule 2)."""
    return float(branches.depth ** (-1 / (2 * max(branches.layers, 2) - 2)))


def with_fixup(tape: Tape, branches: Branches) -> Tape:
    """Return the tape with the last layer of each branch 0 and the others × ``fixup_factor``."""
    numbers, leaves = parameter_numbers(tape), dict(tape.leaves)
    producers = producers_of(tape)
    for names in branches.weights:
        for name in names:
            number = numbers[name]
            factor = 0.0 if name == names[-1] else fixup_factor(branches)
            ref = producers.widest_view(number)
            assert ref is not None  # it has a value: ``branches_at`` read it
            leaves[number] = _times(leaves[number], factor, ref.dtype)
    return replace(tape, leaves=leaves)


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
            drawn = torch.empty(ref.shape)
            nn.init.kaiming_normal_(drawn, nonlinearity=nonlinearity, generator=generator)
            leaves[numbers[name]] = _with_values(leaves[numbers[name]], drawn, ref)
    return replace(tape, leaves=leaves)


def _with_values(leaf: Leaf, value: Tensor, ref: TensorRef) -> Leaf:
    data: Tensor = leaf.data.clone()
    view = torch.empty(0, dtype=torch_dtype(ref.dtype), device=data.device)
    view.set_(data.untyped_storage(), ref.offset, ref.shape, ref.stride).copy_(value)
    return replace(leaf, data=data)


def _times(leaf: Leaf, factor: float, dtype: str) -> Leaf:
    data: Tensor = leaf.data.clone()
    data.view(torch_dtype(dtype)).mul_(factor)
    return replace(leaf, data=data)
