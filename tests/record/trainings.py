"""All the small training loops, by name."""

from __future__ import annotations

from collections.abc import Callable

from odd_trainings import (
    Square,
    checkpoint_not_reentrant,
    checkpoint_reentrant,
    custom_function,
    ema_and_evaluation,
    lstm,
    wgan_gp,
)
from plain_trainings import (
    Trace,
    accumulation,
    batch,
    bf16_autocast,
    by_hand,
    fp16_scaler,
    fp32,
    functional,
    lbfgs,
    net,
    sam,
    skipped_steps,
    two_optimizers,
)

ALL: dict[str, Callable[[], Trace]] = {
    f.__name__: f
    for f in (
        fp32,
        bf16_autocast,
        fp16_scaler,
        skipped_steps,
        accumulation,
        two_optimizers,
        lbfgs,
        sam,
        by_hand,
        functional,
        checkpoint_reentrant,
        checkpoint_not_reentrant,
        custom_function,
        wgan_gp,
        ema_and_evaluation,
        lstm,
    )
}

__all__ = ["ALL", "Square", "batch", "net"]
