"""The earlier op whose rounding moved a value onto a boundary.

Walks from a birth up the dataflow as long as an input of the op at hand differs between the run
and the reference; the first op whose inputs agree and whose output does not is the cause.

Must not know findings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.lockstep import BirthFacts, Observer, lockstep
from fp16doctor.replay.player import Player
from fp16doctor.replay.values import discrepancy, unravel
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.policy import PrecisionPolicy
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

MAX_ANCESTORS = 60  # ops looked at
MAX_ELEMENTS = 2**24  # larger tensors are not kept
# An operand counts as moved when it is off by more than an eighth of its size: three bits are
# gone, far beyond the last place of any 16-bit format.
MOVED = 0.125

Element = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cause:
    """Where a value was moved, and what it is in both runs."""

    site: OpSite
    as_run: float
    exact: float


@dataclass(slots=True)
class _Seen:
    ref: TensorRef
    run: Tensor
    reference: Tensor


class _Capture(Observer):
    """Keeps inputs of chosen ops in both runs."""

    def __init__(self, tape: Tape, wanted: set[int]) -> None:
        self._tape, self._wanted = tape, wanted
        self.inputs: dict[int, list[_Seen]] = {}

    def before(self, index: int, run: Player, reference: Player | None) -> None:
        """Keep the floating inputs of a wanted op."""
        if index not in self._wanted or reference is None:
            return
        call = self._tape.ops[index]
        self.inputs[index] = [
            _Seen(r, run.env.tensor(r).clone(), reference.env.tensor(r).clone())
            for r in refs_in((call.args, call.kwargs))
            if _small_float(r) and run.env.has(r.storage) and reference.env.has(r.storage)
        ]


def find_cause(tape: Tape, birth: BirthFacts, policy: PrecisionPolicy) -> Cause | None:
    """Return the cause of a boundary birth, None where the walk ends at the birth itself."""
    producers = _producers(tape, birth.call.index)
    wanted = _ancestors(tape, birth.call, producers)
    capture = _Capture(tape, wanted)
    part = replace(tape, ops=tape.ops[: birth.call.index + 1], final={})
    lockstep(part, policy, (capture,))
    return _Walk(tape, capture, producers).from_birth(birth)


class _Walk:
    def __init__(
        self, tape: Tape, capture: _Capture, producers: dict[tuple[int, int], int | None]
    ) -> None:
        self._tape, self._capture, self._producers = tape, capture, producers

    def from_birth(self, birth: BirthFacts) -> Cause | None:
        index, element, shape = birth.call.index, birth.element, birth.ref.shape
        cause: Cause | None = None
        for _ in range(MAX_ANCESTORS):
            step = self._moved_input(index, element, shape)
            if step is None:
                return cause
            seen, where = step
            producer = self._producers.get((index, seen.ref.storage))
            if producer is None:
                return cause
            call = self._tape.ops[producer]
            out = _output_for(call, seen.ref)
            place = _same_place(seen.ref, where, out) if out is not None else None
            cause = Cause(
                replace(call.site, element=place),
                float(seen.run[where]),
                float(seen.reference[where]),
            )
            if out is None or producer not in self._capture.inputs:
                return cause
            index, element, shape = producer, place or (), out.shape if place else ()
        return cause

    def _moved_input(
        self, index: int, element: Element, shape: tuple[int, ...]
    ) -> tuple[_Seen, Element] | None:
        best: tuple[float, _Seen, Element] | None = None
        for seen in self._capture.inputs.get(index, ()):
            where = _aligned(seen.ref.shape, element, shape)
            if where is None:
                gaps = discrepancy(seen.run, seen.reference)
                if gaps.numel() == 0:
                    continue
                where = unravel(int(gaps.reshape(-1).argmax()), tuple(seen.run.shape))
            score = _score(float(seen.run[where]), float(seen.reference[where]))
            if score >= MOVED and (best is None or score > best[0]):
                best = (score, seen, where)
        return None if best is None else (best[1], best[2])


def _score(run: float, reference: float) -> float:
    """Return the relative distance, 1 where the run sits exactly on 0 or ±1 and should not."""
    if run == reference or (run != run and reference != reference):
        return 0.0
    if run in (0.0, 1.0, -1.0):
        return 1.0
    if reference == 0 or run != run or reference != reference or run - run != 0:
        return 1.0
    return abs(run - reference) / abs(reference)


def _aligned(shape: tuple[int, ...], element: Element, out: tuple[int, ...]) -> Element | None:
    """Return the index in an operand that is broadcast to ``element`` of the output."""
    if not out and not element:
        return () if not shape else None
    if len(shape) > len(out):
        return None
    tail = out[len(out) - len(shape) :]
    if any(a not in (1, b) for a, b in zip(shape, tail, strict=True)):
        return None
    places = element[len(out) - len(shape) :]
    return tuple(0 if a == 1 else p for a, p in zip(shape, places, strict=True))


def _same_place(ref: TensorRef, where: Element, out: TensorRef) -> Element | None:
    """Return the index in ``out`` of the storage element that ``ref[where]`` is."""
    position = ref.offset + sum(i * s for i, s in zip(where, ref.stride, strict=True)) - out.offset
    index = [0] * len(out.shape)
    order = sorted(range(len(out.shape)), key=lambda d: -out.stride[d])
    for d in order:
        if out.stride[d]:
            index[d], position = divmod(position, out.stride[d])
    if position or any(not 0 <= i < n for i, n in zip(index, out.shape, strict=True)):
        return None
    return tuple(index)


def _output_for(call: OpCall, ref: TensorRef) -> TensorRef | None:
    refs = refs_in((call.outputs, call.args, call.kwargs))
    return next((r for r in refs if r.storage == ref.storage), None)


def _producers(tape: Tape, end: int) -> dict[tuple[int, int], int | None]:
    """Return (op, storage it reads) -> op that wrote the storage last, None for leaves."""
    writer: dict[int, int] = {}
    out: dict[tuple[int, int], int | None] = {}
    for call in tape.ops[: end + 1]:
        for ref in refs_in((call.args, call.kwargs)):
            out[call.index, ref.storage] = writer.get(ref.storage)
        for ref in refs_in(call.outputs):
            writer[ref.storage] = call.index
        for number in call.mutates:
            writer[number] = call.index
    return out


def _ancestors(tape: Tape, birth: OpCall, producers: dict[tuple[int, int], int | None]) -> set[int]:
    wanted, queue = {birth.index}, [birth.index]
    while queue and len(wanted) < MAX_ANCESTORS:
        index = queue.pop(0)
        call = tape.ops[index]
        for ref in refs_in((call.args, call.kwargs)):
            producer = producers.get((index, ref.storage))
            if producer is not None and producer not in wanted and _small_float(ref):
                wanted.add(producer)
                queue.append(producer)
    return wanted


def _small_float(ref: TensorRef) -> bool:
    size = 1
    for n in ref.shape:
        size *= n
    return torch_dtype(ref.dtype).is_floating_point and size <= MAX_ELEMENTS
