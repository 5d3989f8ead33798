"""What went wrong in a closed step, or is about to, as far as it was seen without a tape.

Must not know what is done about it (``record.step_plan``).
"""

from __future__ import annotations

from fp16doctor.pipeline.options import Trouble
from fp16doctor.record.foresight import loss_jumps
from fp16doctor.record.recorder import Recorder
from fp16doctor.record.step_plan import FOUND_INF, NEARING


def trouble_of(recorder: Recorder, step: int) -> Trouble:
    """Return what the survey and the scaler saw go wrong in a closed step."""
    last = recorder.survey.last
    trouble = set(last.nonfinite) if last.step == step else set()
    info = recorder.book.steps[-1] if recorder.book.steps else None
    if info is not None and info.step == step and (info.found_inf or info.skipped):
        trouble.add(FOUND_INF)
    return frozenset(trouble)


def signs_of(recorder: Recorder, step: int) -> Trouble:
    """Return what tells in a closed step that the next one may go wrong."""
    losses = [s.loss for s in recorder.book.steps[-2:] if s.step in (step - 1, step)]
    last = recorder.survey.last
    jumps = len(losses) == 2 and loss_jumps(losses[1], losses[0])
    return frozenset({NEARING} if jumps or (last.step == step and last.nearing) else ())
