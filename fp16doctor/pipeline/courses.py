"""The losses of consecutive steps, as run beside the replayed ones.

Must not know how a trajectory is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence

from fp16doctor.prescribe.bench import Bench
from fp16doctor.replay.scales import scale_of
from fp16doctor.schema.recording import StepInfo


def trajectory(bench: Bench | None, steps: Sequence[StepInfo]) -> dict[str, tuple[float, ...]]:
    """Return losses by policy, "as run" first, without any loss scale; {} if none was followed."""
    found = bench.courses() if bench is not None else {}
    if not found:
        return {}
    by_hand = scale_by_hand(bench, steps)
    known = {s.step: s.loss for s in steps}
    as_run: list[float] = []
    for step in found["steps"]:
        loss = known.get(int(step))
        if loss is None:
            break
        as_run.append(loss / by_hand)
    first = {"steps": found.pop("steps")}
    return {**first, "as run": tuple(as_run), **found} if as_run else {**first, **found}


def scale_by_hand(bench: Bench | None, steps: Sequence[StepInfo]) -> float:
    """Return the constant that the script multiplies its loss by, 1 under a scaler or without."""
    if bench is None or not bench.tapes or any(s.loss_scale is not None for s in steps):
        return 1.0
    return scale_of(bench.tapes[0])
