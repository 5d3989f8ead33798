"""The registry refuses what would make two rules indistinguishable."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from making import attempts, observed, plain, trace

from fp16doctor.diagnose.rule import Check, Observations, all_rules, rule
from fp16doctor.schema.finding import Finding


def check_of(module: str) -> Check:
    def check(seen: Observations) -> Iterator[Finding]:
        yield from ()

    check.__module__ = module
    return check


@pytest.mark.parametrize(
    ("code", "name", "module", "needs", "slug"),
    [
        ("FD101", "other-name", "rules.other_name", "traces", "duplicate-rule"),
        ("FD199", "activation-overflow", "rules.activation_overflow", "traces", "duplicate-rule"),
        ("FD199", "other-name", "rules.another_name", "traces", "rule-file-name"),
        ("FD199", "other-name", "rules.other_name", "moon", "rule-needs"),
    ],
)
def test_misfits_are_refused(code: str, name: str, module: str, needs: str, slug: str) -> None:
    before = all_rules()
    with pytest.raises(ValueError, match=rf"\[{slug}\]"):
        rule(code=code, name=name, needs=(needs,))(check_of(module))
    assert all_rules() == before


def test_rules_come_by_code() -> None:
    codes = [r.code for r in all_rules()]
    assert codes == sorted(codes)


def test_observations_find_steps_and_traces() -> None:
    seen = observed(trace(step=1), steps=attempts("s.."))
    first, missing = seen.step(0), seen.step(9)
    assert first is not None
    assert first.skipped
    assert missing is None
    assert [s.step for s in seen.steps_after(0)] == [1, 2]
    assert seen.trace(1) is seen.traces[0]
    assert seen.trace(0) is None
    assert len(seen.scaler_steps()) == 3
    assert observed(steps=plain(3)).scaler_steps() == ()
