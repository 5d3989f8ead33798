"""Runs a function under a Recorder and keeps what it saw."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fp16doctor.record.births import births, given
from fp16doctor.record.range_hooks import Look
from fp16doctor.record.recorder import Recorder
from fp16doctor.record.roll import Roll
from fp16doctor.record.source_lines import SourceLines
from fp16doctor.record.survey_plan import SurveyPlan
from fp16doctor.record.tape_builder import build_tape
from fp16doctor.schema.tape import Tape

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)

from watched import Record, Watched  # noqa: E402  # the folder is put on the path above


@pytest.fixture
def record() -> Iterator[Record]:
    """Return ``record(function, cautions=(), before_step=…)``; expects just those cautions."""
    open_recorders: list[Recorder] = []

    def run(
        function: Callable[[], Any],
        *,
        cautions: tuple[str, ...] = (),
        before_step: Callable[[int], None] = lambda done: None,
        plan: SurveyPlan | None = None,
        tapes: bool = True,
        check: Callable[[Tape], object] = lambda tape: None,
        started: Callable[[Recorder], object] = lambda recorder: None,
    ) -> Watched:
        plan = plan or SurveyPlan(look=lambda step: Look.NOTHING)

        def on_tape(recorder: Recorder, roll: Roll) -> None:
            seen.sizes.append(len(roll.ops))
            seen.births.append(births(roll))
            seen.given.append(given(roll))
            if tapes:
                seen.tapes.append(build_tape(recorder, roll))
                check(seen.tapes[-1])

        recorder = Recorder(SourceLines(HERE), on_tape, before_step, plan=plan)
        seen = Watched(recorder)
        recorder.start()
        open_recorders.append(recorder)
        started(recorder)
        try:
            seen.result = function()
        finally:
            recorder.stop()
            open_recorders.clear()
        assert tuple(recorder.cautions) == cautions, recorder.cautions
        return seen

    yield run
    for recorder in open_recorders:
        recorder.stop()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
