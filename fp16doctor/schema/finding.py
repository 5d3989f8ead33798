"""What is wrong, in seven parts (HOUSE.md: what, where, evidence, cause, remedy, verification, explain).

Must not know how findings are found or shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fp16doctor.schema.location import OpSite


class Severity(str, Enum):
    """How much it matters."""

    ERROR = "error"  # happened, with impact on loss, gradients, parameters or buffers
    WARNING = "warning"  # measured, near
    NOTE = "note"  # true, harmless


class Fault(str, Enum):
    """Family of a finding."""

    OVERFLOW = "overflow"
    UNDERFLOW = "underflow"
    NAN_BIRTH = "nan_birth"
    PRECISION_LOSS = "precision_loss"
    LOST_UPDATE = "lost_update"
    LOSS_SCALE = "loss_scale"
    INITIALIZATION = "initialization"
    MISUSE = "misuse"
    OBSERVATION = "observation"


# Quantity of an Evidence: how fast values grew until they left the format.
RISE = "rise in binades per 100 steps"
# Quantity of an Evidence: what stays inf or NaN in the reference, so that no wider format is a cure.
REFERENCE_FAILS = "elements that are inf or NaN in the reference as well"
# Quantity of an Evidence: a value that was rounded before the step, so that no replay undoes it.
STORED = "value held in 16 bits before the step"
# Quantity of an Evidence: a scaler that brings the scale back up at once, whatever it starts at.
SCALE_RAISED = "times the loss scale was raised"
SCALER_RAISED = "calls of GradScaler that raised"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured number and the limit it stands against."""

    quantity: str  # "amax", "non-finite elements", "loss scale"
    measured: float
    source: str  # "recorded", "replayed:fp32", "derived"
    limit: float | None = None
    limit_name: str | None = None  # "overflow_threshold"
    format: str | None = None
    count: int | None = None
    total: int | None = None
    worst_index: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause."""

    code: str  # FD101
    name: str  # activation-overflow
    severity: Severity
    fault: Fault
    what: str  # one line, a fact, lower case, no final stop
    cause: str  # one or two sentences, a mechanism
    site: OpSite | None
    cause_site: OpSite | None = None
    evidence: tuple[Evidence, ...] = ()
    consequences: int = 0  # later ops that inherit it
    chain: tuple[OpSite, ...] = ()  # first inf, first NaN, ... loss
    reaches: tuple[str, ...] = ()  # loss, gradients, parameters, buffers
    repeats: tuple[OpSite, ...] = ()  # the same line and op elsewhere in the step
    subsumes: tuple[str, ...] = ()  # codes of findings folded under this one
    advice: str = ""  # what to change, imperative; "" where nothing is known
    left_out: bool = False  # it ends in a loss that the script did not train on


class OutcomeOfCheck(str, Enum):
    """What a rule said."""

    FOUND = "found"
    CLEAR = "clear"
    NOT_APPLICABLE = "not_applicable"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """One rule on one run."""

    code: str
    name: str
    outcome: OutcomeOfCheck
    detail: str = ""
