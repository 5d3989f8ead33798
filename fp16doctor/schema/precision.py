"""What one format did to the values of one step that stayed finite: zeros, updates, integers.

Physical facts, and the bounds by which steps are kept or cures are judged as findings are; all other
bounds, severities and words are made by ``diagnose``.
"""

from __future__ import annotations

from dataclasses import dataclass

from fp16doctor.schema.location import OpSite


@dataclass(frozen=True, slots=True)
class OpLoss:
    """An op whose 16-bit output is zero where the reference is not, or subnormal."""

    site: OpSite
    format: str  # of the output
    total: int  # elements
    underflows: int  # zero as run, non-zero in the reference
    zeros_reference: int  # zeros that belong there
    lost_share: float  # of the reference's Σ|x|, at elements that are zero as run
    inherited_share: float  # the largest such share among the op's own inputs
    subnormal_share: float  # of the reference's Σ|x|, at elements that are subnormal as run
    amax_reference: float  # largest magnitude in the reference
    exposed_share: float = 1.0  # of Σ|x|, all but what is only added where the sum is as coarse
    error: float = 0.0  # ‖as run − reference‖ / ‖reference‖
    inherited_error: float = 0.0  # the largest such error among the op's own inputs


@dataclass(frozen=True, slots=True)
class GradientLoss:
    """The gradient of one parameter where backward ended."""

    name: str  # parameter FQN
    total: int
    underflows: int  # zero as run, non-zero in the reference
    zeros: int  # zero as run
    zeros_reference: int  # zero in the reference
    mass: float  # Σ|x| of the reference
    lost_mass: float  # of it at elements that are zero as run
    error: float | None  # ‖as run − reference‖ / ‖reference‖
    noise: float | None = None  # |mass32 − mass64| / mass of both references; None: not taken
    site: OpSite | None = None  # op at which most of it was lost


@dataclass(frozen=True, slots=True)
class Standstill:
    """The examined steps at the end of the run in which a tensor realised little."""

    first: int  # step
    last: int  # step
    steps: int  # examined among them
    realised: float  # fraction of their intended updates, ⟨Δ, Δref⟩ / ‖Δref‖² over them
    missed: float  # movement of the steps from first to last that did not come, as a share of the value
    relative_update: float | None = None  # median |Δref| / |w| in the last of them


@dataclass(frozen=True, slots=True)
class UpdateLoss:
    """A stored 16-bit tensor that steps update in place, over the examined steps."""

    name: str
    role: str  # "parameter", "buffer", "state" (optimizer state, EMA, accumulators)
    format: str
    site: OpSite  # last write
    total: int
    unchanged: int  # elements whose value did not change, although the reference's did
    should_move: int  # elements whose value changed in the reference
    underflows: int  # elements that are zero as run and not in the reference
    dot: float  # Σ over steps of ⟨Δ, Δref⟩
    norm2: float  # Σ over steps of ‖Δref‖²
    n_writes: int = 1  # in-place writes in a step
    steps: int = 1  # examined steps
    relative_update: float | None = None  # median |Δref| / |w| over elements that should move
    bias: float | None = None  # ‖ΣΔ − ΣΔref‖ / ‖ΣΔref‖
    persistence: float = 0.0  # ‖Σerror‖² / Σ‖error‖²: 1 for independent errors, n for lasting ones
    size: float = 0.0  # ‖value‖ in front of the last examined step, sampled
    retention: float = 1.0  # what a step multiplies the old value by, as far as its ops say
    standstill: Standstill | None = None  # None: the last examined step moved it

    @property
    def realised(self) -> float:
        """Realised fraction of the intended update: 1 where nothing is lost."""
        return self.dot / self.norm2 if self.norm2 else 1.0


@dataclass(frozen=True, slots=True)
class IntegerLoss:
    """Integers put into a format that cannot hold them exactly."""

    site: OpSite
    format: str
    total: int
    changed: int  # elements whose value is another integer
    collisions: int  # distinct integers that became equal to a neighbour
    largest: float  # largest magnitude
    exact_up_to: float  # largest integer up to which the format holds all


# Gradient error of a step from which on it is asked whether digits that cancelled made it: ten times
# what sound 16-bit steps have at most.
FAR_OFF = 0.2
# Share of the elements of a tensor of optimizer state that may be zero and should not be.
STATE_LOST = 0.1


@dataclass(frozen=True, slots=True)
class AmplifiedError:
    """A sum or difference whose result is far less exact than its operands."""

    site: OpSite
    format: str  # 16-bit format of an operand or of the result
    error: float  # ‖as run − reference‖ / ‖reference‖ of the result
    error_in: float  # the same of the worst operand; of a chain by one line, of what enters it
    cause_site: OpSite | None = None  # op that made the worst operand
    share: float | None = None  # of the squared gradient error, gone where the result is exact
    whole: float = 0.0  # gradient error with all ops' errors
    left: float = 0.0  # the same where this result is exact


@dataclass(frozen=True, slots=True)
class PrecisionFacts:
    """All of it for one step."""

    ops: tuple[OpLoss, ...] = ()  # those that lost most, in tape order
    gradients: tuple[GradientLoss, ...] = ()
    integers: tuple[IntegerLoss, ...] = ()
    amplified: tuple[AmplifiedError, ...] = ()  # in tape order
    update_floor: float | None = None  # unscaled gradient below which the optimizer's step shrinks with it; None: it always does
