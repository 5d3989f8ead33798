"""What ``fp16doctor.profile`` refuses, and with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fp16doctor
from fp16doctor.errors import UsageError


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"model": 3}, "model=3"),
        ({"optimizer": "adam"}, "optimizer='adam'"),
        ({"every": 0}, "every=0"),
        ({"schedule": 5}, "schedule=5"),
        ({"on_trouble": "cry"}, "on_trouble='cry'"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        fp16doctor.profile(**arguments)


def test_a_schedule_that_answers_nonsense_is_refused_at_the_start() -> None:
    with pytest.raises(UsageError, match=r"schedule= answered 7"):
        fp16doctor.profile(schedule=lambda step: 7).__enter__()


def test_entering_twice_or_inside_another_is_refused() -> None:
    with fp16doctor.profile() as prof:
        with pytest.raises(UsageError, match="profile-running"):
            fp16doctor.profile().__enter__()
        with pytest.raises(UsageError, match="profile-running"):
            prof.__enter__()
    with pytest.raises(UsageError, match="profile-used"):
        prof.__enter__()


def test_there_is_no_diagnosis_of_what_never_ran() -> None:
    with pytest.raises(UsageError, match="profile-not-entered"):
        fp16doctor.profile().diagnosis  # noqa: B018


class Wide(nn.Module):
    def __repr__(self) -> str:
        raise AssertionError("a model is never printed")


MODEL = Wide()
OPTIMIZER = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
SCHEDULER = torch.optim.lr_scheduler.StepLR(OPTIMIZER, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((OPTIMIZER, MODEL), "the optimizer (SGD) in front of the model (Wide); write"),
        ((OPTIMIZER,), "an optimizer (SGD) as its model"),
        ((MODEL, SCHEDULER), "a learning-rate scheduler (StepLR) as its optimizer; write"),
        ((MODEL, MODEL), "a model (Wide) as its optimizer; leave `model` out"),
        ((MODEL, [OPTIMIZER, SCHEDULER]), "optimizer=a list of SGD, StepLR"),
        ((MODEL, MODEL.parameters()), "optimizer=an object of generator (parameters)"),
        (([MODEL, MODEL],), "model=a list of Wide"),
        ((Wide,), "model=the class Wide"),
    ],
)
def test_what_was_given_in_place_of_a_model_or_optimizer_is_said_in_one_line(
    arguments: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        fp16doctor.profile(*arguments)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert len(message) < 200


def test_several_optimizers_are_taken() -> None:
    fp16doctor.profile(MODEL, [OPTIMIZER, OPTIMIZER])
    fp16doctor.profile(MODEL)


@pytest.mark.parametrize("modules", [3, MODEL, [MODEL]])
def test_modules_are_named_by_patterns(modules: Any) -> None:
    with pytest.raises(UsageError, match="patterns of module paths"):
        fp16doctor.profile(MODEL, modules=modules)


@pytest.mark.parametrize(
    ("place", "words"), [("", "which is a folder"), ("no/run.html", "a folder that is not there")]
)
def test_an_output_that_cannot_be_written_is_refused_before_the_loop(
    tmp_path: Path, place: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        fp16doctor.profile(MODEL, output=tmp_path / place)


def test_its_name_in_a_session_tells_how_far_it_is() -> None:
    model = nn.Sequential(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prof = fp16doctor.profile(model, optimizer)
    assert repr(prof) == "<fp16doctor.profile of Sequential: not entered>"
    assert prof._repr_html_() is None
    with prof:
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        assert repr(prof) == "<fp16doctor.profile of Sequential: watching, 1 step so far>"
    assert repr(prof) == "<fp16doctor.profile of Sequential: 2 steps; 2 taped; no finding>"
    assert repr(fp16doctor.profile()) == "<fp16doctor.profile of every model: not entered>"


def test_its_name_tells_the_leading_finding() -> None:
    model = nn.Linear(2, 1).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fp16doctor.profile(model) as prof:
        (model(torch.ones(1, 2).half()) * 60000 * 60000).sum().backward()
        optimizer.step()
    line = repr(prof)
    assert line.startswith("<fp16doctor.profile of Linear: 1 step; 1 taped; 2 errors")
    assert f"{prof.diagnosis.findings[0].code} " in line
    assert "test_refusals.py:" in line
