from __future__ import annotations

import dataclasses

from making import event, trace
from usages import fact, used

from fp16doctor.diagnose.rules.softmax_then_log import softmax_then_log
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.trace import EventKind
from fp16doctor.schema.usage import UsageKind

LOG = "aten.log.default"
FIRING = used(fact(UsageKind.SOFTMAX_THEN_LOG, Phase.LOSS, op=LOG, format="fp16"))
# The infinity born there has a finding of its own.
SILENT = dataclasses.replace(
    FIRING, traces=(trace(event(EventKind.BOUNDARY, op=LOG, phase=Phase.LOSS)),)
)


def test_is_a_note_with_the_format() -> None:
    (finding,) = softmax_then_log(FIRING)
    assert finding.severity is Severity.NOTE
    assert finding.what.endswith("of a softmax that was rounded to fp16")


def test_an_event_elsewhere_leaves_it() -> None:
    seen = dataclasses.replace(FIRING, traces=(trace(event()),))
    assert len(list(softmax_then_log(seen))) == 1
