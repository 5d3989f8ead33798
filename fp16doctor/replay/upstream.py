"""The earlier op whose rounding moved a value onto a boundary.

Walks from a birth up the dataflow as long as an operand of the op at hand differs between the run
and the reference; the first op whose operands agree and whose output does not is the cause.

Must not know findings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fp16doctor.replay import op_traits
from fp16doctor.replay.births import BirthFacts, Element
from fp16doctor.replay.feeds import Operand, operands
from fp16doctor.replay.lineage import Lineage, Node, place_in
from fp16doctor.replay.lockstep import Observer, lockstep
from fp16doctor.replay.player import Player
from fp16doctor.replay.values import discrepancy, unravel
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.policy import PrecisionPolicy
from fp16doctor.schema.tape import Tape, TensorRef

# An operand counts as moved when it is off by more than an eighth of its size: three bits are
# gone, far beyond the last place of any 16-bit format.
MOVED = 0.125


@dataclass(frozen=True, slots=True)
class Cause:
    """Where a value was moved, and what it is in both runs."""

    site: OpSite
    as_run: float
    exact: float


@dataclass(frozen=True, slots=True)
class _Moved:
    """An operand that differs between the runs, at its element that differs most."""

    ref: TensorRef
    where: Element
    as_run: float
    exact: float
    score: float


Pair = tuple[Tensor, Tensor]  # as run, in the reference


class _Capture(Observer):
    """Keeps the inputs of chosen ops in both runs."""

    def __init__(self, wanted: dict[int, set[TensorRef]]) -> None:
        self._wanted = wanted
        self.inputs: dict[tuple[int, TensorRef], Pair] = {}

    def before(self, index: int, run: Player, reference: Player | None) -> None:
        """Keep what a wanted op is about to read."""
        assert reference is not None
        for ref in self._wanted.get(index, ()):
            if run.env.has(ref.storage) and reference.env.has(ref.storage):
                pair = run.env.tensor(ref).clone(), reference.env.tensor(ref).clone()
                self.inputs[index, ref] = pair


def find_cause(tape: Tape, birth: BirthFacts, policy: PrecisionPolicy) -> Cause | None:
    """Return the cause of a boundary birth, None where the walk ends at the birth itself.

    Replays the tape up to the birth once more, in both formats.
    """
    end = birth.call.index + 1
    lineage = Lineage(tape, birth.call, birth.ref)
    capture = _Capture(lineage.wanted)
    quiet = tuple(replace(call, nonfinite=False) for call in tape.ops[:end])
    lockstep(replace(tape, ops=quiet, final={}), policy, (capture,))
    return _walk(tape, lineage, capture, birth)


def _walk(tape: Tape, lineage: Lineage, capture: _Capture, birth: BirthFacts) -> Cause | None:
    node: Node | None = Node(birth.call.index, birth.ref)
    element: Element | None = birth.element
    cause: Cause | None = None
    seen: _Moved | None = None
    while node is not None:
        found = _moved_operand(tape, capture, node, element, seen)
        producer = None if found is None else lineage.producer(node.index, found.ref)
        if found is None or producer is None:
            return cause
        place = place_in(found.ref, found.where, producer.output)
        site = replace(tape.ops[producer.index].site, element=place)
        cause = Cause(site, found.as_run, found.exact)
        node, element, seen = producer, place, found
    return cause


def _moved_operand(
    tape: Tape, capture: _Capture, node: Node, element: Element | None, seen: _Moved | None
) -> _Moved | None:
    """Return the operand that was moved most, None where all agree."""
    call, shape = tape.ops[node.index], node.output.shape
    best: _Moved | None = None
    for operand in operands(call, node.output, element or (0,) * len(shape)):
        pair = capture.inputs.get((node.index, operand.ref))
        if pair is None or pair[0].numel() == 0:
            continue
        if op_traits.moves_values(call.op):
            found = _same_value(operand.ref, pair, seen) if seen is not None else None
        else:
            gap = _gap(seen) if op_traits.is_sum(call.op) else 0.0
            found = _worst(operand, pair, element, gap)
        if found is not None and found.score >= MOVED and (not best or found.score > best.score):
            best = found
    return best


def _same_value(ref: TensorRef, pair: Pair, seen: _Moved) -> _Moved | None:
    """Return the element of the input of a copying op that has the value it was asked for."""
    match = ((pair[0] == seen.as_run) & (pair[1] == seen.exact)).reshape(-1)
    if not bool(match.any()):
        return None
    where = unravel(int(match.to(torch.uint8).argmax()), ref.shape)
    return replace(seen, ref=ref, where=where)


def _gap(seen: _Moved | None) -> float:
    """Return how far the op's result is off, 0 where that is not known."""
    gap = 0.0 if seen is None else abs(seen.as_run - seen.exact)
    return gap if math.isfinite(gap) else 0.0


def _worst(operand: Operand, pair: Pair, element: Element | None, gap: float) -> _Moved | None:
    run, reference = pair[0].double(), pair[1].double()
    single = element is not None and operand.element is not None
    scores = _relative(run, reference, gap) if single else _to_scale(run, reference)
    if element is not None and operand.region is not None:
        chosen = torch.full_like(scores, -1.0)
        chosen[operand.region] = scores[operand.region]
        if not single:
            chosen[operand.region] = _to_scale(run[operand.region], reference[operand.region])
        scores = chosen
    where = unravel(int(scores.reshape(-1).argmax()), operand.ref.shape)
    return _Moved(
        operand.ref, where, float(run[where]), float(reference[where]), float(scores[where])
    )


def _relative(run: Tensor, reference: Tensor, gap: float) -> Tensor:
    """Return the relative distances, 1 where the run sits exactly on 0 or ±1 and should not.

    A term that is off by less than half of what the sum is off by (``gap``) did not move the sum:
    normalised values are 1 by nature.
    """
    on_pole = (run == 0) | (run.abs() == 1)
    off = (run - reference).abs()
    moved = on_pole & (run != reference) & ~torch.isnan(reference) & ~(off < gap / 2)
    return torch.where(moved, 1.0, discrepancy(run, reference))


def _to_scale(run: Tensor, reference: Tensor) -> Tensor:
    """Return distances relative to the largest magnitude: what many elements together make of it.

    Small elements have large relative errors, which a sum, a product or a softmax does not see.
    """
    size = reference.abs()
    scale = torch.where(torch.isfinite(size), size, 0.0).max().clamp(min=1e-300)
    far = (run - reference).abs() / scale
    same = (run == reference) | (torch.isnan(run) & torch.isnan(reference))
    return torch.where(same, 0.0, torch.nan_to_num(far, nan=1.0, posinf=1.0))
