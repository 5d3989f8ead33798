"""Sentences and evidence that all rules on stored updates share.

Must not know which rule uses them.
"""

from __future__ import annotations

from math import log2

from fp16doctor.diagnose.limits import limits
from fp16doctor.diagnose.sentences import number, power
from fp16doctor.schema.finding import Evidence
from fp16doctor.schema.precision import UpdateLoss


def spacing(update: UpdateLoss) -> str:
    """What the format swallows, and how large the typical update is."""
    half = power(int(log2(limits(update.format).eps)) - 2)
    text = f"{update.format} swallows updates below {half} of the value."
    if update.relative_update is None or update.relative_update - update.relative_update != 0:
        return text
    return f"{text} The median update is {number(update.relative_update)} of it."


def movement(update: UpdateLoss) -> tuple[Evidence, ...]:
    """Realised fraction and unchanged elements, over the examined steps."""
    name = f"`{update.name}`" if update.name else "the tensor"
    return (
        Evidence(f"realised fraction of the updates of {name}", update.realised, "replayed:fp32",
                 limit=1.0, limit_name="full update", format=update.format),
        Evidence(f"unchanged elements over {update.steps} steps", float(update.unchanged),
                 "recorded", format=update.format, count=update.unchanged,
                 total=update.should_move),
    )  # fmt: skip
