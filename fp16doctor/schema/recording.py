"""What really happened in the run: the script's outcome, its steps, what could not be observed.

Must not know what any of it means (``diagnose``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from fp16doctor.schema.location import OpSite, SourceLine
from fp16doctor.schema.ranges import ModuleRanges
from fp16doctor.schema.usage import UsageFact


class OutcomeKind(str, Enum):
    """How the script ended."""

    FINISHED = "finished"  # ran to its end, or exited with status 0
    STOPPED = "stopped"  # ended by --steps
    EXITED = "exited"  # exited with another status
    RAISED = "raised"  # an exception nobody caught
    INTERRUPTED = "interrupted"  # Ctrl-C


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the script ended, in detail."""

    kind: OutcomeKind
    status: int = 0  # exit status the script has by itself
    exception: str | None = None  # type name of the exception
    message: str | None = None  # its text
    source: SourceLine | None = None  # innermost line of the user's code in its traceback
    raised_by: OpSite | None = None  # the ATen call that raised it, where one did


@dataclass(frozen=True, slots=True)
class Caution:
    """Something that could not be observed, with a slug."""

    slug: str
    message: str  # one sentence


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run as a whole; time enters here only."""

    script: str  # as named on the command line
    argv: tuple[str, ...]
    outcome: Outcome
    tool_version: str
    torch_version: str
    python_version: str
    device: str  # devices the ops ran on, e.g. "cpu"
    started: str  # ISO 8601, UTC
    duration_s: float
    examination_s: float = 0.0  # of which spent on replays and rules
    rank: int = 0
    world_size: int = 1
    ops_by_dtype: tuple[tuple[str, int], ...] = ()  # (dtype of the first output, op calls)
    bytes_by_dtype: tuple[tuple[str, int], ...] = ()  # (dtype, bytes the ops of one training step made)
    parameters_by_dtype: tuple[tuple[str, int], ...] = ()  # (dtype in which weights are stored, elements)
    autocast: tuple[str, ...] = ()  # "cpu float16": what was on when a model was called
    loss_scaling: str = ""  # "GradScaler", "by hand, 1024", "none"


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One optimizer attempt."""

    step: int  # 0-based
    loss: float | None = None  # sum over the backward calls of the step, loss scale divided out where known
    loss_scale: float | None = None  # GradScaler's scale used in this step
    found_inf: bool | None = None  # GradScaler saw a non-finite gradient; None without a scaler
    skipped: bool = False  # the optimizer was not stepped: by GradScaler, or by the script itself
    n_ops: int = 0  # ATen calls
    n_nonfinite_ops: int = 0  # of which had inf or NaN in an output
    next_loss_scale: float | None = None  # GradScaler's scale after update()
    loops: tuple[tuple[str, int], ...] = ()  # variables of the script's loops around it, by value

    @property
    def lost(self) -> bool:
        """The optimizer took the step, and its loss was not finite."""
        return self.loss is not None and not self.skipped and not math.isfinite(self.loss)


@dataclass(frozen=True, slots=True)
class Recording:
    """Facts of a run, without interpretation."""

    run: RunInfo
    steps: tuple[StepInfo, ...] = ()
    ranges: tuple[ModuleRanges, ...] = ()
    warnings: tuple[Caution, ...] = field(default_factory=tuple)
    usage: tuple[UsageFact, ...] = ()
