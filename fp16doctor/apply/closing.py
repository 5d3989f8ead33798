"""Which layers have to be 0 so that a value is 0, and whether they could still learn then.

Must not know branches or plans.
"""

from __future__ import annotations

from dataclasses import dataclass

from fp16doctor.apply.flow import Flow, Value
from fp16doctor.schema.tape import TensorRef

ADDITIONS = ("add", "add_", "sub", "sub_")
_JOINS = (*ADDITIONS, "cat", "stack", "copy_")
_PRODUCTS = ("mul", "mul_")
_QUOTIENTS = ("div", "div_")
# Ops that give 0 for 0 and let a gradient through there.
_KEEP_ZERO = (
    "gelu", "gelu_", "silu", "silu_", "tanh", "tanh_", "elu", "elu_", "leaky_relu",
    "leaky_relu_", "celu", "mish", "hardswish", "hardswish_", "prelu", "_prelu_kernel",
    "softshrink", "asinh", "sin", "neg", "clone", "_to_copy", "contiguous", "view",
    "_unsafe_view", "permute", "transpose", "expand", "native_dropout", "mean", "sum",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
    "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d",
    "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "replication_pad1d",
    "replication_pad2d", "upsample_nearest1d", "upsample_nearest2d",
    "_upsample_nearest_exact2d", "upsample_bilinear2d", "upsample_bicubic2d",
    "upsample_nearest3d", "im2col", "col2im", "index", "index_select", "gather", "roll",
    "flip", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle",
)  # fmt: skip
# Ops that give 0 for 0 with a derivative of 0: what lies in front of them never learns.
_DEAD_AT_ZERO = (
    "relu", "relu_", "threshold", "threshold_", "abs", "square", "pow", "hardtanh",
    "hardtanh_",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Closing:
    """Layers to set to 0, or the reason why that does not do."""

    layers: frozenset[int] = frozenset()  # numbers of the values that they make
    obstacle: str = ""  # "aten.sigmoid.default does not give 0 for 0"
    dead: bool = False  # the obstacle is an op whose derivative at 0 is 0


def closing(flow: Flow, number: int, source: int) -> Closing:
    """Return the nearest layers between ``source`` and a value whose zeros make it 0."""
    value = flow.values[number]
    if number == source or not value.descends_from(source):
        return Closing(obstacle="it adds its input, or a value that no layer of it makes")
    if value.layer is not None:
        return Closing(frozenset((number,)))
    if value.op in _DEAD_AT_ZERO:
        inner = closing(flow, value.parents[0], source)
        return inner if inner.obstacle else Closing(obstacle=_dead(value), dead=True)
    return _through(flow, value, source)


def _through(flow: Flow, value: Value, source: int) -> Closing:
    if value.op in _JOINS and not _adds_number(value):
        return _all_of([closing(flow, p, source) for p in value.parents])
    if value.op in _PRODUCTS:
        return _any_of([closing(flow, p, source) for p in value.parents])
    if value.op in _QUOTIENTS and len(value.parents) == 1:
        return closing(flow, value.parents[0], source)
    if value.op in _KEEP_ZERO:
        return closing(flow, value.parents[0], source)
    name = value.call.op if value.call is not None else value.op
    return Closing(obstacle=f"{name} does not give 0 for 0")


def _all_of(found: list[Closing]) -> Closing:
    for one in found:
        if one.obstacle:
            return one
    return Closing(frozenset().union(*(one.layers for one in found)))


def _any_of(found: list[Closing]) -> Closing:
    """One factor of 0 is enough; the other ones stay, or neither would get a gradient."""
    return next((one for one in found if not one.obstacle), found[-1])


def _adds_number(value: Value) -> bool:
    """``x + 0.5``; a parameter is added as well, and starts at 0."""
    other = value.call.args[1] if value.call is not None and len(value.call.args) > 1 else 0
    return (
        not isinstance(other, (TensorRef, tuple, list)) and other != 0 and (value.op in ADDITIONS)
    )


def _dead(value: Value) -> str:
    name = value.call.op if value.call is not None else value.op
    return f"{name} behind the layer has the derivative 0 at 0"


def stuck_behind(flow: Flow, number: int) -> str:
    """Return why the layer that makes a value may not be 0, "" where nothing is in the way.

    Looked at is what is made of the value alone.
    """
    queue, known = [number], {number}
    while queue:
        now = queue.pop()
        for value in flow.values[now + 1 :]:
            if now not in value.parents or value.number in known:
                continue
            if value.op in _DEAD_AT_ZERO and value.op not in ("abs", "pow", "square"):
                return _dead(value)
            others = [p for p in value.parents if p != now]
            if value.op in _QUOTIENTS and any(flow.values[p].descends_from(number) for p in others):
                return "it is divided by a value of its own behind it"
            if not others:
                known.add(value.number)
                queue.append(value.number)
    return ""
