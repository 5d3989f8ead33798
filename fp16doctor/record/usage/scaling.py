"""Finds losses without a scale where fp16 gradients flow, and a GradScaler where bf16 does.

Must not know whether gradients were lost by it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fp16doctor.record.usage.step_view import Seen, StepView
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import UsageKind


def without_scale(view: StepView) -> Iterator[Seen]:
    """Yield the first backward of a step whose fp16 gradients descend from an unscaled loss."""
    backwards = view.backwards
    if not backwards or any(b.scaling.kind != "none" for b in backwards) or view.unscales():
        return
    first = next((b for b in backwards if _has_fp16(view, b.first, b.last)), None)
    if first is None or first.seed is None:
        return
    where = view.ops[first.seed].where
    yield Seen(
        UsageKind.FP16_WITHOUT_SCALE, where, first.seed, Phase.BACKWARD, facts={"format": "fp16"}
    )


def _has_fp16(view: StepView, first: int, last: int) -> bool:
    for op in view.ops[first:last]:
        ref = op.outputs
        if op.where[3] is Phase.BACKWARD and type(ref) is tuple and ref[1] is torch.float16:
            return True
    return False


def scaler_with_bf16(view: StepView) -> Iterator[Seen]:
    """Yield ``scaler.scale`` in a step whose only 16-bit ops are bf16."""
    ran, calls = view.formats, view.calls.scaled
    if calls and torch.bfloat16 in ran and torch.float16 not in ran:
        call = calls[0]
        facts = {"format": "bf16", "loss_scale": view.scale()}
        yield Seen(UsageKind.BF16_WITH_SCALER, call.where, call.index, Phase.LOSS, facts=facts)
