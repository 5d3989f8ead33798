"""Hand-made survey results."""

from __future__ import annotations

import dataclasses
from typing import Any

from making import EMPTY

from fp16doctor.diagnose.rule import Observations
from fp16doctor.schema.ranges import ModuleRanges, RangeStats
from fp16doctor.schema.trace import ReplayTrace


def output(path: str, *amax: float, cls: str = "Block", **kwargs: Any) -> ModuleRanges:
    stats = tuple(RangeStats(100, 0, 0, 0, a, 1e-3) for a in amax)
    steps = tuple(range(0, 100 * len(amax), 100))
    facts: dict[str, Any] = {"amax": max(amax), "amax_step": 0, "n_looked": len(amax)}
    return ModuleRanges(path, cls, "output", steps, stats, **(facts | kwargs))


def seen_ranges(
    *ranges: ModuleRanges, traces: tuple[ReplayTrace, ...] = (), **run: Any
) -> Observations:
    facts: dict[str, Any] = {"ops_by_dtype": (("float16", 100),)}
    info = dataclasses.replace(EMPTY.recording.run, **(facts | run))
    recording = dataclasses.replace(EMPTY.recording, ranges=ranges, run=info)
    return Observations(recording, traces)
