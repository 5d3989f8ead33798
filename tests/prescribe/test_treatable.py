"""Which findings a wider or finer format can cure."""

from __future__ import annotations

import pytest

from fp16doctor.prescribe.treatable import of_precision
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase


def collapsed(scale: float, phase: Phase | None) -> Finding:
    site = None if phase is None else OpSite(3, phase, "aten.mm.default", 7, module_path="head")
    at = Evidence("loss scale", scale, "recorded", 4.0, "loss scale at start")
    return Finding(
        "FD401",
        "collapsing-loss-scale",
        Severity.ERROR,
        Fault.LOSS_SCALE,
        "what",
        "cause",
        site,
        evidence=(at,),
    )


@pytest.mark.parametrize(
    ("scale", "phase", "treated"),
    [
        (0.25, Phase.BACKWARD, True),
        (2.0, Phase.BACKWARD, False),
        (0.25, Phase.FORWARD, False),
        (0.25, None, False),
    ],
)
def test_gradients_that_outgrow_a_scale_of_one_are_a_matter_of_the_format(
    scale: float, phase: Phase | None, treated: bool
) -> None:
    assert bool(of_precision((collapsed(scale, phase),))) is treated
