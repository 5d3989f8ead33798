from __future__ import annotations

import dataclasses

from making import event, observed, trace

from fp16doctor.diagnose.rules.poisoned_buffer import poisoned_buffer
from fp16doctor.schema.trace import SinkState

POISONED = SinkState("buffers", 16, 4, 4, None, worst="bn.running_mean")
FIRING = observed(dataclasses.replace(trace(step=3), sinks=(POISONED,)))
SILENT = observed(
    dataclasses.replace(trace(event(reaches=("buffers",)), step=3), sinks=(POISONED,))
)


def test_names_the_buffer() -> None:
    (finding,) = poisoned_buffer(FIRING)
    assert "`bn.running_mean` is not finite at step 3" in finding.what
    assert finding.site is not None
    assert finding.site.module_path == "bn"
