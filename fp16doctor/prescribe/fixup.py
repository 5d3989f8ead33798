"""The first step again from Fixup's initial weights.

Must not know how the step is judged.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fp16doctor.replay.branches import Branches
from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.parameters import parameter_numbers
from fp16doctor.schema.tape import Leaf, Tape


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


def _times(leaf: Leaf, factor: float, dtype: str) -> Leaf:
    data: Tensor = leaf.data.clone()
    data.view(torch_dtype(dtype)).mul_(factor)
    return replace(leaf, data=data)
