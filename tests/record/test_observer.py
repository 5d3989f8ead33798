"""A recorder changes nothing: same seed, same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import trainings
from torch import Tensor, nn
from watched import Record

from fp16doctor.record.survey_plan import SurveyPlan


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return a.dtype is b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)  # a NaN equals a NaN


@pytest.mark.parametrize("survey", [None, SurveyPlan()], ids=["tape", "tape and survey"])
@pytest.mark.parametrize("name", trainings.ALL)
def test_the_bits_are_the_same(name: str, survey: SurveyPlan | None, record: Record) -> None:
    torch.manual_seed(7)
    plain = trainings.ALL[name]()
    torch.manual_seed(7)
    watched = record(trainings.ALL[name], plan=survey)
    assert same(plain, watched.result)
    assert watched.steps


def test_autograd_numbers_are_the_same(record: Record) -> None:
    """Nothing of ours builds a node, not even on tensors that require grad."""

    def nodes() -> int:
        before = torch._C._autograd._get_sequence_nr()
        trainings.ema_and_evaluation()
        return torch._C._autograd._get_sequence_nr() - before

    assert record(nodes).result == nodes()


def test_versions_and_gradient_layouts_are_the_same(record: Record) -> None:
    def run() -> list[Any]:
        torch.manual_seed(0)
        model = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
        x = torch.randn(2, 2, 5, 5).to(memory_format=torch.channels_last)
        for _ in range(2):  # the second backward accumulates
            model(x).sum().backward()
        return [(p._version, p.grad.stride(), p.grad._version) for p in model.parameters()]

    assert record(run).result == run()


def test_an_exception_of_the_script_comes_through(record: Record) -> None:
    def run() -> None:
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            nn.Linear(3, 3)(torch.randn(2, 4))
        with pytest.raises(ZeroDivisionError):
            1 / 0  # noqa: B018

    record(run)
