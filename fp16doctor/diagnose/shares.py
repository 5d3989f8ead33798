"""Bounds and derived quantities of faults that leave no inf and no NaN.

Must not know words.
"""

from __future__ import annotations

from fp16doctor.diagnose.rule import Observations
from fp16doctor.schema.location import Phase
from fp16doctor.schema.precision import GradientLoss, OpLoss, UpdateLoss
from fp16doctor.schema.trace import ReplayTrace

# Most of a tensor's gradient is gone from here on. On sound fp16 and bf16 runs the share is below
# 0.001 in every tensor; where a loss scale is missing it is 0.5 to 1 in most of them.
LOST_TENSOR = 0.5
LOST_TOTAL = 0.05  # the same over all parameters
# A gradient whose fp32 and fp64 references differ by more than this is rounding noise itself.
NOISE = 0.1
# Realised fraction below which a stored tensor does not follow its updates; 1 is perfect,
# stochastic rounding has 1, an acceptable format 0.9 and more.
REALISED = 0.5
MANY_WRITES = 8  # in-place writes in one step that make a tensor an accumulator
ACCUMULATED = 0.9  # realised fraction an accumulator must have
FEW_STEPS = 2  # a single step proves no lasting loss
MISSED = 0.1  # of its value that a tensor which has stopped must have missed since
LOSS_ERROR = 0.01  # relative error of the loss that no 16-bit rounding of a sound step reaches
GRADIENT_ERROR = 0.1  # the same for the gradient


def finite_traces(seen: Observations) -> tuple[ReplayTrace, ...]:
    """Examined steps in which nothing non-finite was born, or only what was meant to be."""
    return tuple(
        t for t in seen.traces if t.precision is not None and all(e.harmless for e in t.events)
    )


def lost_share(gradient: GradientLoss) -> float:
    """Share of Σ|g| that is zero as run and not in the reference."""
    return gradient.lost_mass / gradient.mass if gradient.mass else 0.0


def lost_gradients(trace: ReplayTrace) -> list[GradientLoss]:
    """Gradients of which at least half is gone, and that are no rounding noise."""
    facts = trace.precision
    if facts is None:
        return []
    return [g for g in facts.gradients if lost_share(g) >= LOST_TENSOR and not _is_noise(g)]


def total_lost(trace: ReplayTrace) -> float:
    """Share of Σ|g| over all parameters that is lost."""
    facts = trace.precision
    kept = [g for g in facts.gradients if not _is_noise(g)] if facts is not None else []
    mass = sum(g.mass for g in kept)
    return sum(g.lost_mass for g in kept) / mass if mass else 0.0


def coarse_gradients(trace: ReplayTrace) -> list[GradientLoss]:
    """Gradients that subnormal numbers keep too few bits of.

    Only where an op of backward, most of whose result is subnormal, is itself that far off: a
    gradient that is off for another reason is none of underflow's.
    """
    facts, entry = trace.precision, entry_into_underflow(trace)
    if facts is None or entry is None or sink_error(trace, "gradients") <= GRADIENT_ERROR:
        return []
    if entry.error <= GRADIENT_ERROR or entry.error <= 2 * entry.inherited_error:
        return []
    return [g for g in facts.gradients if (g.error or 0.0) > GRADIENT_ERROR and not _is_noise(g)]


def lost_update(trace: ReplayTrace) -> float:
    """Share of the update that is lost with the gradients.

    Where the optimizer's step is proportional to the gradient, the share of Σ|g|. Where it divides
    by the gradient's size plus a floor, a parameter counts with its elements and g / (g + floor),
    g its mean magnitude without the loss scale.
    """
    facts = trace.precision
    if facts is None or facts.update_floor is None:
        return total_lost(trace)
    floor = facts.update_floor * (trace.loss_scale or 1.0)
    kept = [g for g in facts.gradients if not _is_noise(g)]
    lost = sum(_moved(g.underflows, g.lost_mass, floor) for g in kept)
    whole = sum(_moved(g.total - g.zeros_reference, g.mass, floor) for g in kept)
    return max(lost / whole if whole else 0.0, total_lost(trace))


def _moved(elements: int, mass: float, floor: float) -> float:
    return mass / (mass / elements + floor) if elements > 0 and mass else 0.0


def _is_noise(gradient: GradientLoss) -> bool:
    return gradient.noise is not None and gradient.noise > NOISE


def entry_into_underflow(trace: ReplayTrace) -> OpLoss | None:
    """First op of backward most of whose result is subnormal or lost."""
    ops = trace.precision.ops if trace.precision is not None else ()
    return next(
        (
            o
            for o in ops
            if o.site.phase is Phase.BACKWARD and o.lost_share + o.subnormal_share >= LOST_TENSOR
        ),
        None,
    )


def sink_error(trace: ReplayTrace, name: str) -> float:
    """Relative error of one sink against the reference, 0 where there is none."""
    state = next((s for s in trace.sinks if s.sink == name), None)
    return state.error if state is not None and state.error is not None else 0.0


def is_changed(trace: ReplayTrace) -> bool:
    """Whether loss or gradients are further from the reference than rounding takes them."""
    return sink_error(trace, "loss") > LOSS_ERROR or sink_error(trace, "gradients") > GRADIENT_ERROR


def is_accumulator(update: UpdateLoss) -> bool:
    """Whether a step adds to the tensor again and again."""
    return update.n_writes >= MANY_WRITES


def stays_behind(update: UpdateLoss) -> bool:
    """Whether a stored tensor does not follow its updates over the examined steps."""
    return update.steps >= FEW_STEPS and update.realised < REALISED


def has_stopped(update: UpdateLoss) -> bool:
    """Whether a stored tensor that followed at first stands still at the end of the run.

    An average that has arrived moves by noise, which cancels; one that has stopped misses the same
    movement step after step.
    """
    still = update.standstill
    if still is None or still.steps < FEW_STEPS:
        return False
    return still.realised < REALISED and still.missed >= MISSED
