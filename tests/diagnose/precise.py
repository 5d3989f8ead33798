"""Hand-made facts of finite faults."""

from __future__ import annotations

from typing import Any

from making import EMPTY, sink, site, trace

from fp16doctor.diagnose.rule import Observations
from fp16doctor.schema.location import Phase
from fp16doctor.schema.precision import (
    GradientLoss,
    IntegerLoss,
    OpLoss,
    PrecisionFacts,
    UpdateLoss,
)
from fp16doctor.schema.trace import ReplayTrace


def op_loss(index: int = 60, **kwargs: Any) -> OpLoss:
    phase = kwargs.pop("phase", Phase.BACKWARD)
    facts: dict[str, Any] = {
        "format": "fp16", "total": 1000, "underflows": 990, "zeros_reference": 5,
        "lost_share": 0.99, "inherited_share": 0.0, "subnormal_share": 0.01,
        "amax_reference": 3e-8,
    }  # fmt: skip
    where = site("aten._to_copy.default", index, phase=phase)
    return OpLoss(site=where, **(facts | kwargs))


def gradient_loss(lost: float = 1.0, mass: float = 2.0, **kwargs: Any) -> GradientLoss:
    facts: dict[str, Any] = {
        "name": "trunk.weight", "total": 1000, "underflows": int(1000 * lost), "zeros": 1000,
        "zeros_reference": 10, "error": lost, "site": site(phase=Phase.BACKWARD, index=60),
    }  # fmt: skip
    return GradientLoss(mass=mass, lost_mass=lost * mass, **(facts | kwargs))


def precise(
    *, step: int = 0, loss_error: float = 0.0, gradient_error: float = 0.0, **facts: Any
) -> ReplayTrace:
    sinks = (sink("loss", loss_error), sink("gradients", gradient_error))
    return trace(step=step, sinks=sinks, precision=PrecisionFacts(**facts))


def seen_traces(*traces: ReplayTrace) -> Observations:
    return Observations(EMPTY.recording, traces)


def update(realised: float = 0.1, **kwargs: Any) -> UpdateLoss:
    phase = kwargs.pop("phase", Phase.OPTIMIZER)
    facts: dict[str, Any] = {
        "name": "norm.weight", "role": "parameter", "format": "bf16", "total": 64,
        "unchanged": 300, "should_move": 384, "underflows": 0, "steps": 6,
        "relative_update": 9e-4, "bias": 1 - realised, "persistence": 6.0,
    }  # fmt: skip
    where = site("aten.addcdiv_.default", 90, phase=phase, module_path=None, module_class=None)
    return UpdateLoss(site=where, dot=realised * 4.0, norm2=4.0, **(facts | kwargs))


def seen_updates(*updates: UpdateLoss) -> Observations:
    return Observations(EMPTY.recording, updates=updates)


def integer_loss(collisions: int = 511) -> IntegerLoss:
    return IntegerLoss(
        site=site("aten._to_copy.default", 4), format="bf16", total=1024, changed=512,
        collisions=collisions, largest=1023.0, exact_up_to=256.0,
    )  # fmt: skip
