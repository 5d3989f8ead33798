"""What ``fp16doctor.profile`` refuses, and with which words."""

from __future__ import annotations

from typing import Any

import pytest

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
