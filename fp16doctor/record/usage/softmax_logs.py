"""Finds logarithms of a softmax that was rounded to 16 bits.

Must not know whether a probability became zero.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fp16doctor.record.split import reads_of, writes_of
from fp16doctor.record.usage.step_view import Seen, StepView, base_of
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import UsageKind

_LOGARITHMS = frozenset({"log", "log2", "log10"})
_SELECT = frozenset(
    {"gather", "index", "index_select", "masked_select", "_to_copy", "to_copy", "clone"}
)
_LOW = {torch.float16: "fp16", torch.bfloat16: "bf16"}


def softmax_then_log(view: StepView) -> Iterator[Seen]:
    """Yield each logarithm whose operand is a 16-bit softmax, whole or in part."""
    rounded: dict[int, str] = {}  # storage -> format of the softmax
    for index, op in enumerate(view.ops):
        if op.where[3] not in (Phase.FORWARD, Phase.LOSS):
            continue
        base = base_of(op)
        out = op.outputs
        if base in ("softmax", "sparse_softmax", "safe_softmax") and type(out) is tuple:
            if out[1] in _LOW:
                rounded[out[0]] = _LOW[out[1]]
            continue
        if not rounded:
            continue
        formats = [rounded[n] for n in reads_of(op) if n in rounded]
        if formats and base in _LOGARITHMS:
            facts = {"format": formats[0]}
            yield Seen(
                UsageKind.SOFTMAX_THEN_LOG, op.where, index, op.where[3], op.info.name, facts
            )
        elif formats and base in _SELECT:
            rounded.update(dict.fromkeys(writes_of(op), formats[0]))
