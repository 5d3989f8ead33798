"""One taped step as it travels: the tape, where it came from, what it left behind.

Must not know files (``record.bundle``) or replays.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fp16doctor.schema.finding import Finding
from fp16doctor.schema.tape import Tape

MATMUL_PRECISION = "float32 matmul precision"  # a name in ``Origin.settings``


@dataclass(frozen=True, slots=True)
class Origin:
    """The run that a bundle was cut from."""

    script: str  # as named on the command line
    step: int  # 0-based optimizer attempt
    device: str  # most of the step ran on it: "cpu", "cuda"
    tool_version: str
    torch_version: str
    threads: int = 1  # of torch, which cut sums on a CPU
    settings: dict[str, str] = field(default_factory=dict)  # "TF32", "deterministic algorithms", "autocast"
    loss: float | None = None  # sum over the backward calls, loss scale included
    finding: Finding | None = None  # the leading finding of this step


@dataclass(frozen=True, slots=True)
class Bundle:
    """A step that can be replayed elsewhere."""

    tape: Tape
    origin: Origin
    outcome: dict[int, str] = field(default_factory=dict)  # storage -> SHA-256 of what the script left in it
    moved: tuple[str, ...] = ()  # devices of the recording whose tensors were moved to the CPU
