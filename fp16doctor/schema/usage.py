"""How the script used mixed precision, as facts of the live run.

Must not know which of them are faults (``diagnose``) or how they are seen (``record``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fp16doctor.schema.location import OpSite

CLIPPED = "clipped"  # detail of NEVER_UNSCALED: the gradients were clipped with the scale on
BESIDE_SCALED = "beside a scaled loss"  # of NEVER_SCALED: another loss of the step carried it


class UsageKind(str, Enum):
    """What was seen."""

    SCALED_CLIP = "scaled_clip"  # gradients were clipped while they carried the loss scale
    SCALED_NORM = "scaled_norm"  # a norm of gradients was taken while they carried it
    NEVER_UNSCALED = "never_unscaled"  # an optimizer stepped on gradients that still carried it
    UNCHECKED_STEP = "unchecked_step"  # a direct step on gradients that GradScaler unscaled
    NEVER_SCALED = "never_scaled"  # divided by the loss scale, and the loss did not carry it
    UNSCALED_TWICE = "unscaled_twice"  # divided by the loss scale a second time
    MIXED_SCALES = "mixed_scales"  # scaled gradients were added to gradients already unscaled
    STEPPED_TWICE = "stepped_twice"  # an optimizer stepped twice on the same gradients
    FP16_WITHOUT_SCALE = "fp16_without_scale"  # fp16 gradients of a loss that carries no scale
    BF16_WITH_SCALER = "bf16_with_scaler"  # GradScaler while only bf16 ran in 16 bits
    UNSCALED_INJECTION = "unscaled_injection"  # a gradient made inside backward without the scale
    SCALED_PENALTY = "scaled_penalty"  # a loss was computed of gradients that carried the scale
    STALE_CAST = "stale_cast"  # a 16-bit cast made before the update was read after it
    SOFTMAX_THEN_LOG = "softmax_then_log"  # logarithm of a softmax that was rounded to 16 bits
    NOT_IN_EFFECT = "not_in_effect"  # autocast or a GradScaler was asked for and is off


@dataclass(frozen=True, slots=True)
class UsageFact:
    """One use, at the first step it was seen in; the same line in later steps is counted."""

    kind: UsageKind
    site: OpSite  # op is "" where it is a call, not an op
    steps: int = 1  # steps in which it was seen
    loss_scale: float | None = None  # factor on the loss: GradScaler's scale, or the constant
    by_hand: bool = False  # the factor is a constant of the script, not GradScaler's
    coefficient: float | None = None  # smallest factor that clipping applied
    limit: float | None = None  # norm or value to which was clipped
    optimizer: str = ""  # its class name
    format: str = ""  # fp16, bf16
    detail: str = ""  # the op, class or call that a sentence names
