"""Which elements of an op's inputs one element of its output is made of.

Must not know values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fp16doctor.replay import op_traits
from fp16doctor.schema.tape import OpCall, TensorRef, refs_in

Element = tuple[int, ...]
Region = tuple[int | slice, ...]  # an index: numbers, and slices for whole dimensions

_ALL = slice(None)
# Products: (position of the left operand, of the right one).
_PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "addbmm": (1, 2)}
# Reductions: position of the dimensions among the arguments.
_REDUCTIONS = {
    "sum": 1,
    "mean": 1,
    "amax": 1,
    "amin": 1,
    "logsumexp": 1,
    "var": 1,
    "std": 1,
    "var_mean": 1,
    "prod": 1,
    "linalg_vector_norm": 2,
    "norm": 2,
}
_BACKWARD_ALONG_DIM = {"_softmax_backward_data": 2, "_log_softmax_backward_data": 2}


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor argument, and the part of it that feeds the element in question."""

    role: str  # "input[1]", or the name of a keyword argument
    ref: TensorRef
    region: Region | None  # None: any part may

    @property
    def element(self) -> Element | None:
        """The one element that feeds, None where it is not exactly one."""
        if self.region is None:
            return None
        numbers = tuple(i for i in self.region if isinstance(i, int))
        return numbers if len(numbers) == len(self.region) else None


def operands(call: OpCall, output: TensorRef, element: Element) -> list[Operand]:
    """Return the tensor arguments of a call as they feed ``output[element]``."""
    place = _list_place(call, output)
    found = []
    for position, value in enumerate(call.args):
        for ref in _refs(value, place):
            region = _region(call, position, ref, output, element)
            found.append(Operand(f"input[{position}]", ref, region))
    for name, value in call.kwargs.items():
        found += [Operand(name, ref, None) for ref in refs_in(value)]
    return found


def _refs(value: Any, place: int | None) -> Iterator[TensorRef]:
    if place is None or not isinstance(value, (list, tuple)):
        yield from refs_in(value)
    elif place < len(value):
        yield from refs_in(value[place])


def _list_place(call: OpCall, output: TensorRef) -> int | None:
    """Return which item of each list an output of a foreach op belongs to."""
    if not op_traits.is_foreach(call.op):
        return None
    for items in (call.outputs, *call.args):
        if isinstance(items, (list, tuple)) and output in items:
            return list(items).index(output)
    return None


def _region(
    call: OpCall, position: int, ref: TensorRef, output: TensorRef, element: Element
) -> Region | None:
    name = op_traits.base(call.op)
    if name in _PRODUCTS:
        return _product_region(_PRODUCTS[name], position, ref, output, element)
    if name in _REDUCTIONS:
        dims = call.args[_REDUCTIONS[name]] if len(call.args) > _REDUCTIONS[name] else None
        return _reduction_region(ref, dims, output, element)
    if op_traits.is_elementwise(call.op) or op_traits.is_foreach(call.op):
        return aligned(ref.shape, element, output.shape)
    place = 1 if op_traits.runs_along_dim(call.op) else _BACKWARD_ALONG_DIM.get(name)
    if place is not None and ref.shape == output.shape and ref.shape:
        line: list[int | slice] = list(element)
        line[call.args[place]] = _ALL
        return tuple(line)
    return None


def aligned(shape: tuple[int, ...], element: Element, out: tuple[int, ...]) -> Element | None:
    """Return the index in an operand that is broadcast to ``element`` of an output."""
    if len(shape) > len(out) or len(element) != len(out):
        return None
    tail = out[len(out) - len(shape) :]
    if any(a not in (1, b) for a, b in zip(shape, tail, strict=True)):
        return None
    places = element[len(out) - len(shape) :]
    return tuple(0 if a == 1 else p for a, p in zip(shape, places, strict=True))


def _product_region(
    sides: tuple[int, int], position: int, ref: TensorRef, output: TensorRef, element: Element
) -> Region | None:
    """Row i of the left operand and column j of the right one make element (i, j)."""
    if position not in sides:  # the addend
        return aligned(ref.shape, element, output.shape)
    batch = element[:-2] if len(ref.shape) == len(output.shape) else (_ALL,)
    row, column = element[-2:]
    return (*batch, row, _ALL) if position == sides[0] else (*batch, _ALL, column)


def _reduction_region(
    ref: TensorRef, dims: Any, output: TensorRef, element: Element
) -> Region | None:
    rank = len(ref.shape)
    chosen = [dims] if type(dims) is int else dims  # True stands for another argument
    if not isinstance(chosen, (list, tuple)) or not chosen:
        chosen = range(rank)
    reduced = {d % rank for d in chosen} if rank else set()
    if len(output.shape) == rank:
        return tuple(_ALL if d in reduced else element[d] for d in range(rank))
    rest = iter(element)
    if rank - len(reduced) != len(element):
        return None
    return tuple(_ALL if d in reduced else next(rest) for d in range(rank))
