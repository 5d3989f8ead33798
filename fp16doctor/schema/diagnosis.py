"""The whole answer, complete: whatever a report shows is in here.

Must not know files (``codec`` spells it as JSON) or pages (``report``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fp16doctor.schema.blame import BlamedOp, ErrorBudget
from fp16doctor.schema.confirmation import Confirmation
from fp16doctor.schema.finding import CheckOutcome, Finding
from fp16doctor.schema.location import OpSite, SourceContext
from fp16doctor.schema.prescription import Prescription, Recommendation
from fp16doctor.schema.ranges import GradientScales, ModuleRanges
from fp16doctor.schema.recording import Caution, RunInfo, StepInfo

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class FormatLimits:
    """The numbers of one considered format, frozen into the document."""

    name: str  # fp16
    max: float
    overflow_threshold: float  # first magnitude that rounds to inf
    smallest_normal: float
    smallest_subnormal: float
    eps: float


@dataclass(frozen=True, slots=True)
class FidelitySummary:
    """Over all examined steps."""

    bit_equal: bool
    largest_difference: float = 0.0


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """How much was replayed, and how faithfully."""

    steps: tuple[int, ...]  # examined steps
    fidelity: FidelitySummary | None  # None: nothing was replayed
    n_ops: int = 0
    pinned: int = 0  # distinct ops pinned for another reason than that they draw at random
    opaque: int = 0
    reference: str = "none"  # "fp32", "fp64", "none"
    pinned_ops: tuple[tuple[str, str], ...] = ()  # (op, reason), distinct
    opaque_ops: tuple[tuple[str, str], ...] = ()  # (op, reason), distinct


@dataclass(frozen=True, slots=True)
class FormatOutlook:
    """What a format that the run did not use would do to it, foretold from one replayed step."""

    status: str  # "fits", "fits_with_loss_scale", "overflows", "loses_gradients", "unknown"
    sentence: str
    step: int | None = None
    loss_scale: float | None = None  # the one tried
    gradient_error: float | None = None  # ‖g − gref‖ / ‖gref‖
    lost_share: float | None = None  # largest share of one parameter's gradient that becomes zero
    first: OpSite | None = None  # first op that overflows


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What fp16doctor knows about a run."""

    run: RunInfo
    formats: tuple[FormatLimits, ...]
    steps: tuple[StepInfo, ...]
    checks: tuple[CheckOutcome, ...]
    findings: tuple[Finding, ...]  # most important first
    prescriptions: tuple[Prescription, ...]
    recommendation: Recommendation
    replay: ReplaySummary
    ranges: tuple[ModuleRanges, ...] = ()
    warnings: tuple[Caution, ...] = ()
    outlook: dict[str, FormatOutlook] = field(default_factory=dict)  # format -> what it would do
    trajectory: dict[str, tuple[float, ...]] = field(default_factory=dict)  # "steps", and losses by policy
    blame: tuple[BlamedOp, ...] = ()  # ops that make most of one step's error, the first the most
    error_budget: ErrorBudget | None = None  # what their shares are shares of; None: not asked for
    gradient_scales: GradientScales | None = None
    acceptance: dict[str, float] = field(default_factory=dict)  # criterion -> number
    context: tuple[SourceContext, ...] = ()  # around the findings' lines; empty under --no-source
    confirm: Confirmation | None = None  # None: not asked for, or no cure to confirm
    schema_version: int = SCHEMA_VERSION
