"""What a scan is asked for.

Must not know how it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fp16doctor.record.simulation import OFF
from fp16doctor.record.survey_plan import SurveyPlan
from fp16doctor.schema.start import ScanStart

# What went wrong in a step as far as the survey saw it: (module path, role), ("", "found_inf").
Trouble = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """What a scan was asked for."""

    steps: int | None = None  # stop after so many optimizer attempts
    sources: bool = True  # keep the text of source lines
    style: bool = False  # tell what the script's text shows and harms no run as well
    budget_s: float = 45.0  # seconds that trying cures may take
    tolerance: float = 1.0  # factor on what a cure may miss of the fp32 descent
    keeps_bundle: bool = False  # ``Session.bundle`` will be asked for
    survey: SurveyPlan | None = None  # which steps are surveyed, and how closely
    # Asked at the opening of each step, with the trouble of the one before; None tapes them all.
    wants_tape: Callable[[int, Trouble], bool] | None = None
    before_step: Callable[[], None] | None = None  # may raise into the script
    progress: Callable[[str], None] | None = None  # told what is being done; "" where it is over
    eager: bool = False  # ``torch.compile`` compiles nothing, so that each op is seen
    simulate: str = OFF  # when a CUDA device is simulated (``record.simulation``)
    start: ScanStart | None = None  # how the command line started it
