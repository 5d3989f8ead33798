"""The dataflow of one forward pass: values, what they descend from, which weights they come of.

A value is what one op makes of data; parameters, buffers and what is made of those alone are
constants. Views are the value they look at.

Must not know residual branches, nor how the calls were recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from fp16doctor.schema.tape import OpCall, TensorRef, refs_in

# op -> positions of the two operands of a product, one of which may be a weight
PRODUCTS = {
    "convolution": (0, 1), "_convolution": (0, 1), "mkldnn_convolution": (0, 1), "linear": (0, 1),
    "mm": (0, 1), "bmm": (0, 1), "mv": (0, 1),
    "addmm": (1, 2), "addmm_": (1, 2), "baddbmm": (1, 2), "addbmm": (1, 2), "addmv": (1, 2),
    "_addmm_activation": (1, 2),
}  # fmt: skip
_CONVOLUTIONS = ("convolution", "_convolution", "mkldnn_convolution")
_COPIES = ("_to_copy", "clone", "copy", "copy_", "contiguous", "detach", "alias", "lift_fresh")
_OF_SHAPE = ("_like", "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided")


@dataclass(frozen=True, slots=True)
class Layer:
    """One use of a weight in a convolution or a matrix product with data."""

    weight: str  # parameter FQN
    fan_out: int  # outputs an input element reaches: out_channels·k²/groups, out_features
    computed: bool  # the weight is made of parameters in the forward pass (weight norm)


@dataclass(frozen=True, slots=True)
class Value:
    """What one op made of data."""

    number: int
    op: str  # base name, "add"; "input" for what the pass was given
    call: OpCall | None
    parents: tuple[int, ...]  # values, in the order of the arguments
    ancestors: int  # bit set of values, its own included
    layer: Layer | None = None
    product: bool = False  # of two values: an attention's, say

    def descends_from(self, number: int) -> bool:
        """Tell whether value ``number`` is among the ancestors; a value is its own."""
        return bool(self.ancestors >> number & 1)


@dataclass(frozen=True, slots=True)
class _Constant:
    """Made of parameters and buffers alone."""

    names: tuple[str, ...] = ()  # parameters
    plain: bool = False  # one parameter as it is, but for its layout or format


class Flow:
    """The values of one pass, in order.

    ``parameters`` maps storages to parameter FQNs, ``constants`` are the storages of buffers.
    """

    def __init__(
        self,
        calls: Iterable[OpCall],
        parameters: Mapping[int, tuple[str, ...]],
        constants: Iterable[int] = (),
    ) -> None:
        self.values: list[Value] = []
        self.other_uses: dict[str, str] = {}  # parameter -> op that uses it as no layer's weight
        self.names = {n for names in parameters.values() for n in names}
        self._kinds: dict[int, int | _Constant] = {
            number: _Constant(names, len(names) == 1) for number, names in parameters.items()
        }
        self._kinds.update(dict.fromkeys(constants, _Constant()))
        for call in calls:
            self._take(call)

    def kind(self, ref: TensorRef) -> int | None:
        """Return the value a reference now stands for, None for a constant."""
        found = self._kinds.get(ref.storage)
        if found is None:
            found = self._kinds[ref.storage] = self._add("input", None, ())
        return found if isinstance(found, int) else None

    def layers(self) -> Iterator[tuple[Value, Layer]]:
        """Return the values that a layer makes."""
        return ((v, v.layer) for v in self.values if v.layer is not None)

    def between(self, source: int, end: int) -> Iterator[Value]:
        """Return the values on the ways from one value to another, the first left out."""
        for number in range(source + 1, end + 1):
            if self.values[end].descends_from(number):
                value = self.values[number]
                if value.descends_from(source):
                    yield value

    def _take(self, call: OpCall) -> None:
        op = base(call.op)
        made = {r.storage for r in refs_in(call.outputs)} | set(call.mutates)
        reads = [] if _is_of_shape(op) else refs_in((call.args, call.kwargs))
        if made <= {r.storage for r in reads} and not call.mutates:
            return  # a view
        parents = tuple(dict.fromkeys(n for r in reads if (n := self.kind(r)) is not None))
        found: int | _Constant
        if parents:
            layer = self._layer(call, op)
            self._note_other_uses(call, layer)
            found = self._add(op, call, parents, layer, product=self._is_product(call, op))
        else:
            found = self._constant(op, reads)
        self._kinds.update(dict.fromkeys(made, found))

    def _constant(self, op: str, reads: list[TensorRef]) -> _Constant:
        known = [c for r in reads if isinstance(c := self._kinds[r.storage], _Constant)]
        names = tuple(dict.fromkeys(n for c in known for n in c.names))
        plain = op in _COPIES and len(names) == 1 and all(c.plain for c in known if c.names)
        return _Constant(names, plain)

    def _add(
        self,
        op: str,
        call: OpCall | None,
        parents: tuple[int, ...],
        layer: Layer | None = None,
        *,
        product: bool = False,
    ) -> int:
        number = len(self.values)
        ancestors = 1 << number
        for parent in parents:
            ancestors |= self.values[parent].ancestors
        self.values.append(Value(number, op, call, parents, ancestors, layer, product))
        return number

    def _operands(self, call: OpCall, op: str) -> list[TensorRef]:
        places = PRODUCTS.get(op, ())
        given = [call.args[i] for i in places if i < len(call.args)]
        return [a for a in given if isinstance(a, TensorRef)]

    def _is_product(self, call: OpCall, op: str) -> bool:
        kinds = [self.kind(r) for r in self._operands(call, op)]
        return len(kinds) == 2 and None not in kinds

    def _layer(self, call: OpCall, op: str) -> Layer | None:
        operands = self._operands(call, op)
        kinds = [self._kinds[r.storage] for r in operands]
        for place, (ref, kind) in enumerate(zip(operands, kinds, strict=True)):
            if isinstance(kind, _Constant) and kind.names and len(ref.shape) > 1:
                fan_out = _fan_out(call, op, ref, place)
                return Layer(kind.names[0], fan_out, computed=not kind.plain)
        return None

    def _note_other_uses(self, call: OpCall, layer: Layer | None) -> None:
        for ref in refs_in((call.args, call.kwargs)):
            kind = self._kinds[ref.storage]
            if isinstance(kind, _Constant) and kind.plain and len(ref.shape) > 1:
                for name in kind.names:
                    if layer is None or name != layer.weight:
                        self.other_uses.setdefault(name, call.op)


def base(op: str) -> str:
    """Return ``add`` for ``aten.add.Tensor``."""
    return op.split(".")[1] if "." in op else op


def _is_of_shape(op: str) -> bool:
    """The op takes a shape and a format from its argument, and no values."""
    return op.endswith(_OF_SHAPE)


def _fan_out(call: OpCall, op: str, weight: TensorRef, place: int) -> int:
    """Return how many outputs one input element reaches.

    For one group it is out_channels·k², as the code published with arXiv 1901.09321 has it.
    """
    shape = weight.shape
    if op in _CONVOLUTIONS:
        transposed = op != "mkldnn_convolution" and bool(call.args[6])
        groups = int(call.args[8 if op != "mkldnn_convolution" else 6])
        out = shape[1] if transposed else shape[0] // max(groups, 1)
        return max(out * prod(shape[2:]), 1)
    if op == "linear":
        return max(shape[0], 1)
    return max(shape[-1] if place == 1 else shape[-2], 1)
