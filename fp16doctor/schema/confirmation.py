"""What the script itself did under the recommended cure.

Must not know how the script was run again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class ConfirmVerdict(str, Enum):
    """What the confirming run showed."""

    HELD = "held"
    NOT_HELD = "not_held"
    NOT_RUN = "not_run"  # it could not be put to the test


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The script as it ran, beside the script under the cure."""

    verdict: ConfirmVerdict
    reason: str = ""  # why it did not hold or was not run; what shows beside a cure that held
    before: dict[str, float] = field(default_factory=dict)  # quantity -> number, as run
    after: dict[str, float] = field(default_factory=dict)  # the same under the cure
    steps: int = 0  # optimizer attempts of the confirming run
    redirected: tuple[str, ...] = ()  # files of the confirming run that went elsewhere
