"""Tensors that a step replaces by a new one under the same name: ``c = 0.9 * c + 0.1 * x``.

Nothing is written in place. On a tape a tensor from outside goes through elementwise ops of its
shape into one that the script still holds at the step's end; that the next step begins with that
one, and sends it through the same line, is what makes the two one state.

Must not know how much of its updates such a state takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fp16doctor.replay import op_traits
from fp16doctor.replay.dataflow import Producers
from fp16doctor.replay.values import HALF
from fp16doctor.schema.location import SourceLine
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

MOST_OPS = 8  # between the old tensor and the new one
CONFIRMED = 2  # times that a step began with what the one before it had left
_PASSES_ON = frozenset(["detach", "alias", "clone", "view", "lift_fresh"])

Name = tuple[SourceLine, str, tuple[int, ...], int]  # line, op, shape, which of them
Path = tuple[tuple[int, TensorRef], ...]  # (op, what it reads), the last op first


@dataclass(frozen=True, slots=True)
class Rebound:
    """One such pair on one tape."""

    name: Name
    old: TensorRef  # a leaf
    new: TensorRef
    path: Path  # from the new one back to the old one
    updates: int  # by that line: two where a batch is prepared in the step before and in this one


def rebounds(tape: Tape, producers: Producers) -> Iterator[Rebound]:
    """Yield what may be states of 16 bits; ``Chains`` tells which of them are."""
    count: dict[tuple[SourceLine, str, tuple[int, ...]], int] = {}
    for number in sorted(tape.keys):
        ref, writers = producers.widest_view(number), producers.writers(number)
        if number in tape.leaves or ref is None or ref.dtype not in HALF or not writers:
            continue
        call = tape.ops[writers[-1]]
        path = way_back(tape, producers, ref, writers[-1])
        if path is None or not _is_state(tape, path[-1][1]) or call.site.source is None:
            continue
        line = call.site.source, call.op, ref.shape
        count[line] = count.get(line, -1) + 1
        updates = sum((tape.ops[i].site.source, tape.ops[i].op) == line[:2] for i, _ in path)
        yield Rebound((*line, count[line]), path[-1][1], ref, path, updates)


def _is_state(tape: Tape, ref: TensorRef) -> bool:
    return ref.dtype in HALF and not tape.leaves[ref.storage].is_parameter


def way_back(
    tape: Tape, producers: Producers, ref: TensorRef, index: int, left: int = MOST_OPS
) -> Path | None:
    """Return the elementwise ops from a result back to a leaf of the same shape."""
    call = tape.ops[index]
    if not left or not _keeps_elements(call):
        return None
    for given in _beside(call, ref):
        if given.shape != ref.shape or "float" not in given.dtype:
            continue
        writer = producers.last_writer(given.storage, index)
        if writer is None and given.storage in tape.leaves:
            return ((index, given),)
        further = None
        if writer is not None:
            further = way_back(tape, producers, given, writer, left - 1)
        if further is not None:
            return ((index, given), *further)
    return None


def _keeps_elements(call: OpCall) -> bool:
    name = op_traits.base(call.op)
    return (
        op_traits.is_elementwise(call.op)
        or name.startswith("_foreach_")
        or name.rstrip("_") in _PASSES_ON
    )


def _beside(call: OpCall, ref: TensorRef) -> list[TensorRef]:
    """Return the arguments that one result is made of: of lists, those at its place."""
    outs = call.outputs
    if not isinstance(outs, (list, tuple)):
        return refs_in((call.args, call.kwargs))
    place = next((i for i, o in enumerate(outs) if ref.storage in _storages(o)), None)
    given: list[TensorRef] = []
    for value in (*call.args, *call.kwargs.values()):
        if isinstance(value, (list, tuple)) and len(value) == len(outs) and place is not None:
            given += refs_in(value[place])
        else:
            given += refs_in(value)
    return given


def _storages(value: object) -> set[int]:
    return {r.storage for r in refs_in(value)}


End = tuple[int, Tensor]  # address, values


def _same(one: End, other: End) -> bool:
    return one[0] == other[0] and torch.equal(one[1], other[1])


@dataclass(slots=True)
class Chains:
    """Which pairs follow one another from step to step."""

    _left: dict[Name, tuple[int, End, End]] = field(default_factory=dict)
    _times: dict[Name, int] = field(default_factory=dict)

    def note(self, pair: Rebound, step: int, old: End, new: End) -> None:
        """Take note of one step: addresses and values of the old tensor and of the new one."""
        known = self._left.get(pair.name)
        if known is not None and known[0] == step - 1:
            both = pair.updates > 1 and _same(known[1], old)  # what that step did is here as well
            if both or _same(known[2], old):
                self._times[pair.name] = self._times.get(pair.name, 0) + 1
        self._left[pair.name] = step, (old[0], old[1].clone()), (new[0], new[1].clone())

    def confirmed(self, name: Name) -> bool:
        """Tell whether a state goes by that name."""
        return self._times.get(name, 0) >= CONFIRMED
