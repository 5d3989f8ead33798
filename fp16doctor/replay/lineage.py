"""The ops that a value comes from, within a budget, and where an element sits in their outputs.

Must not know values.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from fp16doctor.replay.births import Element
from fp16doctor.replay.calls import outputs_of
from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.feeds import operands
from fp16doctor.schema.tape import OpCall, Tape, TensorRef

MAX_OPS = 60  # ops looked at, nearest first
MAX_ELEMENTS = 2**25  # of all inputs kept together


@dataclass(frozen=True, slots=True)
class Node:
    """One output of one op."""

    index: int
    output: TensorRef


class Lineage:
    """Ancestors of one output of one op."""

    def __init__(self, tape: Tape, call: OpCall, output: TensorRef) -> None:
        self._tape = tape
        self._producers = producers_of(tape)
        self.wanted: dict[int, set[TensorRef]] = {}  # op -> inputs to look at
        self._collect(Node(call.index, output))

    def _collect(self, first: Node) -> None:
        queue, known, elements = [first], {first}, 0
        while queue and len(self.wanted) < MAX_OPS:
            node = queue.pop(0)
            call = self._tape.ops[node.index]
            for operand in operands(call, node.output, (0,) * len(node.output.shape)):
                elements += prod(operand.ref.shape)
                if not torch_dtype(operand.ref.dtype).is_floating_point or elements > MAX_ELEMENTS:
                    continue
                self.wanted.setdefault(node.index, set()).add(operand.ref)
                producer = self.producer(node.index, operand.ref)
                if producer is not None and producer not in known:
                    known.add(producer)
                    queue.append(producer)

    def producer(self, index: int, ref: TensorRef) -> Node | None:
        """Return the output that the value of ``ref`` in front of op ``index`` is part of.

        None for leaves and for values that were written in another format.
        """
        writer = self._producers.last_writer(ref.storage, index)
        if writer is None:
            return None
        made = [r for r in outputs_of(self._tape.ops[writer]) if r.storage == ref.storage]
        fitting = [r for r in made if r.dtype == ref.dtype]
        exact = [r for r in fitting if (r.offset, r.shape) == (ref.offset, ref.shape)]
        chosen = (exact or fitting)[:1]
        return Node(writer, chosen[0]) if chosen else None


def place_in(ref: TensorRef, where: Element, output: TensorRef) -> Element | None:
    """Return the index in ``output`` of the storage element that ``ref[where]`` is.

    None where ``output`` does not cover it, or has another format.
    """
    if ref.dtype != output.dtype:
        return None
    rest = ref.offset + sum(i * s for i, s in zip(where, ref.stride, strict=True)) - output.offset
    index = [0] * len(output.shape)
    for d in sorted(range(len(index)), key=lambda d: -output.stride[d]):
        if output.shape[d] > 1 and output.stride[d] > 0:
            index[d] = min(max(rest, 0) // output.stride[d], output.shape[d] - 1)
            rest -= index[d] * output.stride[d]
    return tuple(index) if rest == 0 else None
