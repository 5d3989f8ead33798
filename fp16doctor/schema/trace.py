"""What replaying one tape against a reference showed: births of non-finite values and where they went.

Physical facts only; severities and words are made by ``diagnose``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fp16doctor.schema.layers import LayerGain
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.precision import PrecisionFacts


class EventKind(str, Enum):
    """Why an op with finite inputs had a non-finite output."""

    OVERFLOW = "overflow"  # exact result finite, at or above the format's overflow threshold
    INTERNAL_OVERFLOW = "internal_overflow"  # exact result finite and below it: the kernel's own accumulation
    BOUNDARY = "boundary"  # non-finite in exact arithmetic on these inputs, finite in the reference run
    INTENDED = "intended"  # non-finite in the reference run as well, and no sink receives it
    HEALED = "healed"  # the same, no mask and no statistic: a later op takes it out again
    LOGIC = "logic"  # non-finite in the reference runs as well, and a sink receives it
    UNKNOWN = "unknown"  # the op could not be replayed


@dataclass(frozen=True, slots=True)
class StoredPole:
    """A value that a tensor held in 16 bits before the step, and that only another can replace."""

    site: OpSite  # the difference that is 0 because of it
    value: float  # 1
    format: str  # of the tensor: fp16, bf16
    name: str | None = None  # FQN where it is a buffer


@dataclass(frozen=True, slots=True)
class Event:
    """One birth: finite floating-point inputs, non-finite output."""

    kind: EventKind
    site: OpSite  # element = index of the worst element
    format: str  # format of the output: fp16, bf16, fp32, fp64
    n_inf: int  # infinities born in the output
    n_nan: int  # NaNs born in the output
    total: int  # elements of the output
    exact: float | None  # result of the op on these inputs in reference precision at ``element``
    reference: float | None  # value of the reference run at ``element``
    reference_amax: float | None  # largest finite magnitude of the reference run's output
    operands: tuple[tuple[str, float, float], ...] = ()  # (role, value as run, value in the reference) at ``element``
    cause_site: OpSite | None = None  # the earlier op whose rounding moved a value onto the boundary
    cause_as_run: float | None = None  # value there as run
    cause_exact: float | None = None  # value there in the reference
    integer_operand: bool = False  # the op turns integers or Python scalars into this format (arange, fill, cast of ints)
    constant: float | None = None  # a Python scalar argument that the format cannot hold
    later_nonfinite: int = 0  # later ops whose outputs inherit it
    first_nan: OpSite | None = None  # first op that made NaN out of it
    reaches: tuple[str, ...] = ()  # sinks: "loss", "gradients", "parameters", "buffers"
    repeats: tuple[OpSite, ...] = ()  # other births of the same kind by the same line and op
    left: bool = False  # ends in one number, a loss that no backward took up
    in_tail: bool = False  # born after the update: preparation of the next batch, logging, evaluation
    stored: StoredPole | None = None  # both runs have it because of what was stored before the step
    healed_by: OpSite | None = None  # the last op that read it and made finite values of it

    @property
    def harmless(self) -> bool:
        """Whether both runs have it and take no harm from it."""
        return self.kind in (EventKind.INTENDED, EventKind.HEALED)


@dataclass(frozen=True, slots=True)
class Poison:
    """An inf or NaN that a step was given, and where it went."""

    site: OpSite  # first op of forward or loss that takes it in
    made_at: OpSite  # first op that reads it
    nan: bool  # holds NaN; False: infinities alone
    name: str | None = None  # parameter or buffer FQN
    is_parameter: bool = False
    is_buffer: bool = False
    is_batch: bool = False  # the op at ``site`` reads a tensor with one row a sample
    later_nonfinite: int = 0  # ops whose outputs inherit it
    reaches: tuple[str, ...] = ()  # sinks: "loss", "gradients", "parameters", "buffers"
    left: bool = False  # ends in one number, a loss that no backward took up


@dataclass(frozen=True, slots=True)
class SinkState:
    """Loss, gradients, parameters or buffers in one replay."""

    sink: str  # "loss", "gradients", "applied gradients", "parameters", "buffers"
    total: int  # elements
    nonfinite: int  # as run
    nonfinite_reference: int  # in the reference run
    error: float | None  # ‖as run − reference‖ / ‖reference‖ over finite elements; None where not defined
    zeros: int = 0  # exact zeros as run
    zeros_reference: int = 0
    amax_reference: float | None = None  # largest finite magnitude in the reference run
    worst: str | None = None  # FQN of the tensor with the largest error or the first non-finite value


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Is the replay as run equal to the recording?"""

    bit_equal: bool
    compared: int  # tensors compared
    largest_difference: float = 0.0  # largest absolute difference
    first_difference: OpSite | None = None  # last writer of the first tensor that differs


@dataclass(frozen=True, slots=True)
class ShorterUpdate:
    """What a share of a step's update does to the loss of the step's own batch, in fp32."""

    ratio: float  # ‖update‖ / ‖weights‖ over all parameters that it moved
    before: float  # loss of the batch in front of the update, loss scale divided out
    share: float | None = None  # largest of the tried ones that lowers it; None: none of them
    after: float | None = None  # the loss with that share


@dataclass(frozen=True, slots=True)
class ReplayTrace:
    """One examined step."""

    step: int
    reference: str  # policy name of the reference: fp32 or fp64; "none" where only the run itself was replayed
    events: tuple[Event, ...]
    sinks: tuple[SinkState, ...]
    fidelity: Fidelity
    n_ops: int  # ops replayed
    pinned: tuple[tuple[str, str], ...] = ()  # (op, reason): reference results taken from the run
    opaque: tuple[tuple[str, str], ...] = ()  # (op, reason): results taken from snapshots
    loss: float | None = None  # as run, scale included
    loss_reference: float | None = None
    loss_scale: float | None = None  # GradScaler's scale in this step
    found_inf: bool | None = None
    scalars_differ: int = 0  # .item() values that differ in the reference by more than rounding
    precision: PrecisionFacts | None = None  # finite losses; None where no reference was played
    complete: bool = True  # False: the step was examined in part
    poisons: tuple[Poison, ...] = ()  # in tape order
    layers: tuple[LayerGain, ...] = ()  # of the first step, in order of use
    loss_after_update: float | None = None  # of the same batch, in the reference, loss scale divided out; taken where the next loss jumps
    shorter: ShorterUpdate | None = None  # taken where the next loss jumps
    update_site: OpSite | None = None  # first op of the last optimizer step
    seconds: float = 0.0
