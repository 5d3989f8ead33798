"""Hand-made facts about the use of mixed precision, without torch."""

from __future__ import annotations

import dataclasses
from typing import Any

from making import observed, plain, site

from fp16doctor.diagnose.rule import Observations
from fp16doctor.schema.location import Phase
from fp16doctor.schema.recording import StepInfo
from fp16doctor.schema.usage import UsageFact, UsageKind


def fact(kind: UsageKind, phase: Phase = Phase.OPTIMIZER, **kwargs: Any) -> UsageFact:
    where = {k: kwargs.pop(k) for k in ("op", "step", "index", "source") if k in kwargs}
    return UsageFact(kind, site(**({"op": "", "phase": phase} | where)), **kwargs)


def used(*facts: UsageFact, steps: tuple[StepInfo, ...] | None = None, **run: Any) -> Observations:
    """Observations of a run with these facts; keyword arguments are fields of its RunInfo."""
    seen = observed(steps=plain(3) if steps is None else steps)
    recording = dataclasses.replace(
        seen.recording, usage=facts, run=dataclasses.replace(seen.recording.run, **run)
    )
    return dataclasses.replace(seen, recording=recording)
