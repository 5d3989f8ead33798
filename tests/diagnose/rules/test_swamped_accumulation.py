from __future__ import annotations

import pytest
from precise import seen_updates, update

from fp16doctor.diagnose.rules.swamped_accumulation import swamped_accumulation

FIRING = seen_updates(update(0.6, role="state", n_writes=256))
SILENT = seen_updates(update(0.99, role="state", n_writes=256, bias=0.01), update(0.1))


def test_says_how_many_writes_a_step_makes() -> None:
    (finding,) = swamped_accumulation(FIRING)
    assert "over 256 additions a step 60 % arrives" in finding.what


@pytest.mark.parametrize("writes", [1, 4])
def test_few_writes_are_no_accumulation(writes: int) -> None:
    assert not list(swamped_accumulation(seen_updates(update(0.6, n_writes=writes))))
