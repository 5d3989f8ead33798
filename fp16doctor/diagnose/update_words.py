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
    text = f"{update.format} swallows updates below {_half(update)} of the value."
    size = _typical(update)
    return text if size is None else f"{text} The median update is {number(size)} of it."


def swallowed(update: UpdateLoss) -> str:
    """The same in one clause, the update first."""
    limit, size = f"{update.format} swallows what is below {_half(update)}", _typical(update)
    if size is None or size >= limits(update.format).eps / 4:
        return f"{limit} of the value"
    return f"the median update is {number(size)} of the value, and {limit} of it"


def _half(update: UpdateLoss) -> str:
    """Half the spacing of the format at a value, as a share of that value."""
    return power(int(log2(limits(update.format).eps)) - 2)


def _typical(update: UpdateLoss) -> float | None:
    """The median update as a share of the value, None where it is not known."""
    still = update.standstill
    size = update.relative_update if still is None else still.relative_update
    return None if size is None or size - size != 0 else size


def arrives(update: UpdateLoss) -> str:
    """``0 % arrives``; from the step on from which it is less than over all of them."""
    still = update.standstill
    if still is not None and still.realised < update.realised:
        return f"from step {still.first} on {number(100 * still.realised)} % arrives"
    return f"{number(100 * update.realised)} % arrives"


def stopped(update: UpdateLoss, count: int) -> str:
    """From which step on a tensor that followed at first stands still."""
    still = update.standstill
    if still is None:
        return ""
    verb = "stands" if count == 1 else "stand"
    arrived = f"{number(100 * still.realised)} % of the updates arrives"
    return f"{verb} still from step {still.first} on: {arrived}"


def standing(update: UpdateLoss) -> str:
    """How much movement was missed since."""
    still = update.standstill
    if still is None:
        return ""
    return (
        f"Up to step {still.last} it missed {number(100 * still.missed)} % of its value; over "
        f"all examined steps it realised {number(update.realised)} of its updates."
    )


def movement(update: UpdateLoss) -> tuple[Evidence, ...]:
    """Realised fraction and unchanged elements, over the examined steps."""
    name = f"`{update.name}`" if update.name else "the tensor"
    still = update.standstill
    same = still is None or still.realised == update.realised  # it never followed
    late = () if still is None or same else (
        Evidence(f"realised fraction of the updates of {name} from step {still.first} on",
                 still.realised, "replayed:fp32", limit=1.0, limit_name="full update",
                 format=update.format),
    )  # fmt: skip
    return (
        *late,
        Evidence(f"realised fraction of the updates of {name}", update.realised, "replayed:fp32",
                 limit=1.0, limit_name="full update", format=update.format),
        Evidence(f"unchanged elements over {update.steps} steps", float(update.unchanged),
                 "recorded", format=update.format, count=update.unchanged,
                 total=update.should_move),
    )  # fmt: skip
