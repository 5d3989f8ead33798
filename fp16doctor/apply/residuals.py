"""Residual branches in the dataflow of a forward pass: the additions that close them, their layers.

An addition closes a branch where one of its operands descends from the other, or where both
descend from one value and the way of one, the shortcut, has fewer layers. An outer branch that
holds inner ones has the layers that are in none of those, nor on a shortcut around one.

Must not know initial weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from fp16doctor.apply.closing import ADDITIONS, Closing, closing
from fp16doctor.apply.flow import Flow, Value, base
from fp16doctor.schema.tape import TensorRef

_NORMS = (
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit_functional", "cudnn_batch_norm", "miopen_batch_norm",
    "native_layer_norm", "native_group_norm", "_fused_rms_norm", "batch_norm", "rsqrt",
    "var", "var_mean", "std", "std_mean", "linalg_vector_norm", "norm",
)  # fmt: skip
_ATTENTIONS = ("scaled_dot_product", "_native_multi_head_attention", "_transformer_encoder_layer")


@dataclass(frozen=True, slots=True)
class Residual:
    """One branch: values of the flow by number."""

    source: int  # what the branch starts from
    end: int  # what it adds
    addition: int
    shortcut: tuple[int, ...]  # layers on the way beside it: a projection
    layers: tuple[int, ...]  # in order; those of inner branches left out
    closing: Closing  # the last layers
    depth: int  # m: the most layers on one way to the last, that one counted
    holds: int  # inner branches

    @property
    def last(self) -> tuple[int, ...]:
        """Layers whose zeros make the branch 0."""
        return tuple(sorted(self.closing.layers))


def residuals(flow: Flow) -> tuple[Residual, ...]:
    """Return the branches with layers, inner ones before the outer ones that hold them."""
    found: list[Residual] = []
    for value in flow.values:
        pair = _operands(flow, value)
        ends = None if pair is None else _source_and_end(flow, *pair)
        if ends is not None:
            source, end, shortcut = ends
            one = _residual(flow, found, (source, end, value.number), shortcut)
            if one is not None:
                found.append(one)
    return tuple(found)


def longest_way(flow: Flow, found: tuple[Residual, ...]) -> int:
    """Return L: the most additions of branches on one way through the pass."""
    ends = {r.addition for r in found}
    counts: list[int] = []
    for value in flow.values:
        most = max((counts[p] for p in value.parents), default=0)
        counts.append(most + (value.number in ends))
    return max(counts, default=0)


def normalisations(flow: Flow, one: Residual) -> list[Value]:
    """Return the ops of a branch that take a norm or a variance of data."""
    return [v for v in flow.between(one.source, one.addition) if v.op in _NORMS]


def normalised_stream(flow: Flow, found: tuple[Residual, ...]) -> Value | None:
    """Return the first norm of the stream between two branches (post-norm), None if none."""
    additions = [r.addition for r in found]
    for value in flow.values:
        behind = any(value.descends_from(n) for n in additions)
        if value.op in _NORMS and behind:
            ahead = any(flow.values[n].descends_from(value.number) for n in additions)
            if ahead:
                return value
    return None


def attentions(flow: Flow, one: Residual) -> list[Value]:
    """Return the products of two values in a branch, and fused attention."""
    inside = flow.between(one.source, one.end)
    return [v for v in inside if v.product or any(a in v.op for a in _ATTENTIONS)]


def _operands(flow: Flow, value: Value) -> tuple[int, int] | None:
    """The two values an addition of two equal shapes adds."""
    call = value.call
    if call is None or base(call.op) not in ADDITIONS or len(value.parents) != 2:
        return None
    refs = [a for a in call.args[:2] if isinstance(a, TensorRef)]
    if len(refs) != 2 or refs[0].shape != refs[1].shape or len(refs[0].shape) < 2:
        return None
    return value.parents[0], value.parents[1]


def _source_and_end(flow: Flow, a: int, b: int) -> tuple[int, int, tuple[int, ...]] | None:
    """Where a branch starts and ends, and the layers of the shortcut."""
    if flow.values[b].descends_from(a):
        return a, b, ()
    if flow.values[a].descends_from(b):
        return b, a, ()
    common = flow.values[a].ancestors & flow.values[b].ancestors
    if not common:
        return None
    source = common.bit_length() - 1  # the latest
    ways = {n: [v for v in flow.between(source, n) if v.layer is not None] for n in (a, b)}
    names = [{v.layer.weight for v in way if v.layer is not None} for way in ways.values()]
    if names[0] & names[1]:  # a recurrent cell: the same weights on both ways
        return None
    lengths = {n: _most_layers(flow, source, (n,), {v.number for v in ways[n]}) for n in (a, b)}
    if lengths[a] == lengths[b]:  # parallel layers: none of them is a shortcut
        return None
    short, end = (a, b) if lengths[a] < lengths[b] else (b, a)
    return source, end, tuple(v.number for v in ways[short])


def _residual(
    flow: Flow, inner: list[Residual], places: tuple[int, int, int], shortcut: tuple[int, ...]
) -> Residual | None:
    source, end, addition = places
    inside = {v.number for v in flow.between(source, end)}
    held = [r for r in inner if r.addition in inside]
    taken = {n for r in held for n in (*r.layers, *r.shortcut)}
    own = tuple(n for n in sorted(inside - taken) if flow.values[n].layer is not None)
    if not own:
        return None
    last = closing(flow, end, source)
    depth = _most_layers(flow, source, tuple(last.layers) or (end,), set(own))
    return Residual(source, end, addition, shortcut, own, last, depth, len(held))


def _most_layers(flow: Flow, source: int, ends: tuple[int, ...], counted: set[int]) -> int:
    """The most of ``counted`` on one way from a value to one of ``ends``."""
    counts = {source: 0}
    for end in ends:
        for value in flow.between(source, end):
            most = max((counts[p] for p in value.parents if p in counts), default=0)
            counts[value.number] = most + (value.number in counted)
    return max((counts.get(end, 0) for end in ends), default=0)
