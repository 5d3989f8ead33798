"""Where steps are counted otherwise than the script's loop, a finding has the loop's number too."""

from __future__ import annotations

from dataclasses import replace

import pytest
from making import event, observed, plain, trace

from fp16doctor.diagnose.engine import diagnose


@pytest.mark.parametrize(
    ("loops", "words"),
    [
        ((("i", 12),), "Optimizer step 0 is taken at `i` = 12 of the script's loop."),
        (
            (("epoch", 0), ("i", 3)),
            "Optimizer step 0 is taken at `epoch` = 0, `i` = 3 of the script's loops.",
        ),
        ((("i", 0),), ""),  # the same number
        ((), ""),
    ],
)
def test_the_number_of_the_loop(loops: tuple[tuple[str, int], ...], words: str) -> None:
    steps = tuple(replace(s, loops=loops) for s in plain(1))
    (finding, *_), _ = diagnose(observed(trace(event()), steps=steps))
    (other, *_), _ = diagnose(observed(trace(event()), steps=plain(1)))
    assert finding.cause == f"{other.cause} {words}".strip()
