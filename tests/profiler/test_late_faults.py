"""A fault behind the first steps: met by itself where it announces itself, else with every_step."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import fp16doctor
from fp16doctor.errors import UsageError
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Severity


def train(
    factors: list[float], power: int = 2, **options: Any
) -> tuple[Diagnosis, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4)).half()
    nn.init.ones_(model[0].weight)  # so that an output is four times the input
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with fp16doctor.profile(model, optimizer, **options) as prof:
        for factor in factors:
            optimizer.zero_grad()
            model(torch.ones(2, 4).half() * factor).float().pow(power).mean().backward()
            optimizer.step()
    return prof.diagnosis, [p.detach().clone() for p in model.parameters()]


def taped(diagnosis: Diagnosis) -> list[int]:
    return [s.step for s in diagnosis.steps if s.n_ops]


SUDDEN = [1.0] * 6 + [6e4] + [1.0]
GROWING = [3.0**i for i in range(11)]


def test_values_that_grow_towards_the_maximum_are_taped_before_they_pass_it() -> None:
    found, _ = train(GROWING, power=1)
    leading = found.findings[0]
    first_bad = next(
        s.step for s in found.steps if s.loss is not None and not math.isfinite(s.loss)
    )
    assert leading.site is not None
    assert leading.site.step == first_bad
    assert leading.severity is Severity.ERROR
    assert taped(found) == [0, 1, 2, *range(first_bad - 1, len(GROWING))]


def test_values_that_stay_are_not_taped() -> None:
    found, _ = train([3.0**7 * (1 + 0.2 * (i % 2)) for i in range(10)], power=1)
    assert taped(found) == [0, 1, 2]


def test_every_step_finds_the_fault_that_comes_without_a_sign() -> None:
    sudden, weights = train(SUDDEN)
    assert 6 not in taped(sudden)
    found, watched = train(SUDDEN, every_step=True)
    assert taped(found) == list(range(len(SUDDEN)))
    assert found.findings[0].site is not None
    assert found.findings[0].site.step == 6
    assert found.findings[0].severity is Severity.ERROR
    assert all(map(partial(torch.allclose, rtol=0, atol=0, equal_nan=True), weights, watched))


@pytest.mark.parametrize("options", [{}, {"every": 3}])
def test_the_advice_names_the_code_to_write(options: dict[str, Any]) -> None:
    found, _ = train(SUDDEN, **options)
    told = [w.message for w in found.warnings if w.slug == "trouble-not-taped"]
    advice = [f.advice for f in found.findings if f.code == "FD115"]
    assert told or advice
    code = "`with fp16doctor.profile(model, optimizer, every_step=True) as prof:`"
    assert all(code in text for text in [*told, *advice])


def test_every_step_and_a_schedule_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="every_step=True and schedule="):
        fp16doctor.profile(every_step=True, schedule=lambda step: "NONE")


def test_inf_that_an_unseen_step_left_in_the_weights_is_not_blamed_on_the_next() -> None:
    """inf - inf in the next step's first op is NaN in any format, and no fault of that op."""
    torch.manual_seed(0)
    model = nn.Linear(2, 2).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with fp16doctor.profile(model, optimizer) as prof:
        for step in range(8):
            optimizer.zero_grad()
            x = torch.tensor([[1.0, -1.0]]).half()
            loss = model(x).float().sum() * 1e-4
            if step == 5:
                loss = loss + (model.weight.float() * 1e6).sum()  # inf in an fp16 gradient
            loss.backward()
            optimizer.step()
    leading = prof.diagnosis.findings[0]
    assert taped(prof.diagnosis) == [0, 1, 2, 6, 7]
    assert leading.code == "FD115"
    assert leading.site is not None
    assert leading.site.step == 6
    assert "every_step=True" in leading.advice
    assert "FD112" not in {f.code for f in prof.diagnosis.findings}
