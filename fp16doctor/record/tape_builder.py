"""Turns the raw records of a step into a :class:`~fp16doctor.schema.tape.Tape`.

Must not know how records are made or what a tape is replayed for.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from fp16doctor.record import own
from fp16doctor.record.roll import Raised, RawOp, Roll
from fp16doctor.record.screen import HAS_NAN
from fp16doctor.record.split import reads_of, writes_of
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.tape import Leaf, Mark, OpCall, Tape, TensorRef

if TYPE_CHECKING:
    from torch import Tensor

    from fp16doctor.record.recorder import Recorder
    from fp16doctor.record.step_book import StepMarks


def build_tape(recorder: Recorder, roll: Roll) -> Tape:
    """Return the step as data; storages the script still holds are kept by reference."""
    marks = recorder.book.marks
    return _Builder(recorder, roll).build(marks)


def build_refused(recorder: Recorder, roll: Roll, raised: Raised) -> Tape | None:
    """Return the step up to the call that raised, which is the last one of the tape.

    None where the recording does not lead up to it.
    """
    ops = [*roll.ops[: raised.index], raised.op]
    tape = _Builder(recorder, replace(roll, ops=ops)).build(recorder.book.marks)
    if not tape.complete or not tape.ops or tape.ops[-1].op != raised.op.info.name:
        return None
    return replace(tape, losses=(), final={}, keys={}, refused=True)


def site_of(recorder: Recorder, op: RawOp, step: int) -> OpSite:
    """Return the site of one op that is not on a finished tape: the one that raised."""
    return replace(_Builder(recorder, recorder.roll)._site(len(recorder.roll.ops), op), step=step)


class _Builder:
    def __init__(self, recorder: Recorder, roll: Roll) -> None:
        self._recorder, self._roll, self._rank = recorder, roll, recorder.book.ranks[0]
        self._versions: dict[int, int] = {}
        self._named = recorder.modules.named_tensors()
        self._tied = recorder.modules.tied_names()
        self._devices = {n: leaf.device for n, leaf in roll.leaves.items()}

    def build(self, marks: StepMarks) -> Tape:
        roll = self._roll
        kept = self._needed(marks.forward or 0)
        places = {old: new for new, old in enumerate(kept)}
        read_losses = marks.losses or self._probable_loss()
        losses = [Mark(_after(places, i, len(roll.ops)), self._ref(r)) for i, r in read_losses]
        ops = tuple(self._call(n, roll.ops[old]) for n, old in enumerate(kept))
        final = self._final()
        return Tape(
            step=roll.step,
            ops=ops,
            leaves={n: self._leaf(n) for n in roll.leaves},
            snapshots={
                (places[i], s): _bytes(v) for (i, s), v in roll.snapshots.items() if i in places
            },
            losses=tuple(losses),
            gradients={g: self._name(p) or f"parameter {p}" for g, p in marks.gradients.items()},
            backward_ends=tuple(_after(places, i, len(roll.ops)) for i in marks.backward_ends),
            batch=marks.batch,
            optimizer_at=_place(places, marks.optimizer_at, len(roll.ops)),
            attempt=_place(places, marks.attempt, len(roll.ops)),
            final=final,
            keys={n: self._roll.weak[n].cdata for n in final},
            calls=dict(self._recorder.modules.forms.known),
            device=self._recorder.simulation.device,
            complete=not self._recorder.truncated,
        )

    def _probable_loss(self) -> list[tuple[int, Any]]:
        """Return the last number computed before a backward that never came.

        A script that asserts on its loss ends there; where one such number is non-finite, it is
        the one that counts.
        """
        found: list[tuple[int, int, Any]] = []
        for index, op in enumerate(self._roll.ops):
            out, phase = op.outputs, op.where[3]
            if phase not in (Phase.LOSS, Phase.FORWARD) or type(out) is not tuple:
                continue
            if out[1].is_floating_point and math.prod(out[2]) == 1:
                found.append((op.code, index + 1, out))
        worst = max((code for code, _, _ in found), default=0)
        return [(i, ref) for code, i, ref in found if code == worst][-1:]

    def _needed(self, forward: int) -> list[int]:
        """Return the ops to keep: before ``forward`` only what later ops need, or what is sick."""
        ops = self._roll.ops
        wanted: set[int] = set()
        for op in ops[forward:]:
            wanted |= reads_of(op)
        kept = list(range(forward, len(ops)))
        for index in range(forward - 1, -1, -1):
            op = ops[index]
            if op.code or not wanted.isdisjoint(writes_of(op)):
                wanted |= reads_of(op)
                kept.append(index)
        return sorted(kept)

    def _call(self, index: int, op: RawOp) -> OpCall:
        args = tuple(self._value(a) for a in op.args)
        kwargs = {k: self._value(v) for k, v in op.kwargs.items()}
        for number in op.written:
            self._versions[number] = self._versions.get(number, 0) + 1
        return OpCall(
            index=index,
            op=op.info.name,
            args=args,
            kwargs=kwargs,
            outputs=self._value(op.outputs),
            mutates=op.written,
            site=self._site(index, op),
            rng=op.rng,
            generator=op.generator_key,
            nonfinite=op.code > 0,
            nan=op.code == HAS_NAN,
            opaque=op.opaque,
        )

    def _site(self, index: int, op: RawOp) -> OpSite:
        source, caller, module, phase = op.where
        lines = self._recorder.lines
        return OpSite(
            step=self._roll.step,
            phase=phase,
            op=op.info.name,
            index=index,
            module_path=module.path if module else self._module_written(op),
            module_class=module.class_name if module else None,
            source=lines.line(source),
            caller=lines.line(caller),
            rank=self._rank,
        )

    def _module_written(self, op: RawOp) -> str | None:
        """Return the module whose parameter or gradient an op outside modules writes."""
        for number in op.written[:1]:
            name = self._name(self._recorder.book.marks.gradients.get(number, number))
            if name is not None:
                return name.rpartition(".")[0]
        return None

    def _value(self, value: Any) -> Any:
        if type(value) is tuple:
            return self._ref(value)
        if type(value) is list:
            return [self._value(v) for v in value]
        if isinstance(value, torch.dtype):
            return value
        return value

    def _ref(self, raw: Any) -> TensorRef:
        number, dtype, shape, stride, offset = raw
        return TensorRef(
            number,
            self._versions.get(number, 0),
            str(dtype).removeprefix("torch."),
            tuple(shape),
            tuple(stride),
            offset,
            self._devices.get(number, ""),
        )

    def _name(self, number: int) -> str | None:
        weak = self._roll.weak.get(number)
        known = self._named.get(weak.cdata) if weak is not None else None
        return known[0] if known else None

    def _leaf(self, number: int) -> Leaf:
        leaf = self._roll.leaves[number]
        known = self._named.get(self._roll.weak[number].cdata)
        return Leaf(
            data=_bytes(leaf.bytes),
            name=known[0] if known else None,
            also=self._tied.get(self._roll.weak[number].cdata, ()),
            is_parameter=number in self._roll.params or bool(known and known[1]),
            is_buffer=bool(known and known[2]),
            key=self._roll.weak[number].cdata,
            on_disk=leaf.on_disk,
        )

    def _final(self) -> dict[int, Tensor]:
        roll = self._roll
        written = {n: i for i, op in enumerate(roll.ops) for n in writes_of(op)}
        for index, number in roll.snapshots:
            if index > written.get(number, index):  # something unseen writes it, now and again
                written.pop(number)
        final = {}
        for number in written.keys() - roll.unseen:
            storage = roll.alive(number)
            if storage is not None:
                final[number] = _bytes(storage)
        return final


def _place(places: dict[int, int], index: int | None, total: int) -> int | None:
    return None if index is None else _after(places, index, total)


def _after(places: dict[int, int], index: int, total: int) -> int:
    """Return the new position of the first kept op at or after ``index``."""
    while index < total and index not in places:
        index += 1
    return places[index] if index in places else len(places)


def _bytes(storage: Any) -> Tensor:
    return own.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
