"""What fp16 and bf16 would do to a run that did not use them.

Must not know how a step is replayed in another format.
"""

from __future__ import annotations

from collections.abc import Callable

from fp16doctor.errors import ReplayError
from fp16doctor.prescribe.acceptance import LOST_TENSOR, gradient_error, largest_loss
from fp16doctor.replay.narrow import is_wide
from fp16doctor.replay.trial import Trial, run_narrow, run_trial
from fp16doctor.schema.diagnosis import FormatOutlook
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.policy import FP32
from fp16doctor.schema.spelling import number
from fp16doctor.schema.tape import Tape

FORMATS = ("fp16", "bf16")
SCALE = 2.0**12  # loss scale tried where fp16 loses gradients without one


def outlook(
    tapes: tuple[Tape, ...], over: Callable[[], bool] = lambda: False
) -> dict[str, FormatOutlook]:
    """Return one entry for each 16-bit format that the first kept step did not use.

    Nothing is tried any more once ``over`` says that the time is spent.
    """
    if not tapes:
        return {}
    tape = tapes[-1]
    wide = (name for name in FORMATS if is_wide(tape, name))
    return {name: _untried(tape, name) if over() else _one(tape, name) for name in wide}


def _untried(tape: Tape, name: str) -> FormatOutlook:
    return FormatOutlook("unknown", f"the time budget was spent before {name} was tried", tape.step)


def _one(tape: Tape, name: str) -> FormatOutlook:
    try:
        reference = run_trial(tape, FP32)
        trial = run_narrow(tape, name)
    except ReplayError as error:
        return FormatOutlook("unknown", f"{name} could not be tried: {error.message}", tape.step)
    if name == "fp16" and trial.finite and largest_loss(reference, trial) >= LOST_TENSOR:
        scaled = run_narrow(tape, name, SCALE)
        if scaled.finite and largest_loss(reference, scaled) < LOST_TENSOR:
            return _described(tape, name, reference, scaled, "fits_with_loss_scale", SCALE)
    if not trial.finite or trial.births:
        return _described(tape, name, reference, trial, "overflows", None)
    lost = largest_loss(reference, trial) >= LOST_TENSOR
    return _described(tape, name, reference, trial, "loses_gradients" if lost else "fits", None)


def _described(
    tape: Tape, name: str, reference: Trial, trial: Trial, status: str, scale: float | None
) -> FormatOutlook:
    first = trial.births[0] if trial.births else None
    error, lost = gradient_error(reference, trial), largest_loss(reference, trial)
    return FormatOutlook(
        status=status,
        sentence=_sentence(name, status, first, error, scale),
        step=tape.step,
        loss_scale=scale,
        gradient_error=error,
        lost_share=lost,
        first=first,
    )


def _sentence(
    name: str, status: str, first: OpSite | None, error: float | None, scale: float | None
) -> str:
    if status == "overflows" and first is not None:
        line = first.source
        where = f" at {line.file}:{line.line}" if line is not None else ""
        return f"{name} autocast would overflow in {first.op}{where}"
    if status == "loses_gradients":
        return f"{name} autocast would lose gradients to underflow, with a loss scale as well"
    off = f", gradients {number(100 * error)} % off" if error is not None else ""
    needs = f" with a loss scale such as {number(scale)}" if scale is not None else ""
    return f"{name} autocast would do{needs}{off} (one step, as matrix units compute)"
