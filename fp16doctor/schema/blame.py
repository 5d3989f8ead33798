"""The error budget of one replayed step: which ops make how much of what is wrong in it.

Must not know how an error is measured (``replay.blame``).
"""

from __future__ import annotations

from dataclasses import dataclass

from fp16doctor.schema.location import OpSite


@dataclass(frozen=True, slots=True)
class BlamedOp:
    """One op and its part of the step's error.

    Of a finite error the shares are shares of its square, and negative where errors cancel; of
    births they are shares of the elements that are not finite.
    """

    site: OpSite
    share: float | None  # measured: what goes where this op alone makes no error
    alone: float | None = None  # measured: what this op's error makes where no other op errs
    cumulative: float | None = None  # measured jointly: what goes with this op and all before it
    predicted: float | None = None  # share by the adjoint: it ranks, and no total is made of it


@dataclass(frozen=True, slots=True)
class ErrorBudget:
    """What the shares of ``BlamedOp`` are shares of."""

    step: int
    quantity: str  # "gradient error", "loss error", "non-finite gradient elements", "non-finite loss"
    total: float  # as run: ‖g − gref‖ / ‖gref‖, |l − lref| / |lref|, or elements
    n_ops: int  # ops that erred: those whose 16-bit result is off, or births of inf and NaN
    sentence: str = ""
    reason: str = ""  # why nothing was measured, or why not all of it
