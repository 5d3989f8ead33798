"""Colours and width of what is said on stderr follow the terminal and the environment."""

from __future__ import annotations

import io

import pytest

from fp16doctor.cli.voice import Voice


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return monkeypatch


@pytest.mark.parametrize(
    ("stream", "environment", "colored"),
    [
        (Terminal, {}, True),
        (io.StringIO, {}, False),  # a pipe or a file
        (Terminal, {"NO_COLOR": "1"}, False),
        (Terminal, {"NO_COLOR": ""}, True),  # only a value that is not empty counts
        (Terminal, {"TERM": "dumb"}, False),
        (io.StringIO, {"FORCE_COLOR": "1"}, True),
        (io.StringIO, {"FORCE_COLOR": "0"}, False),
        (Terminal, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour(
    stream: type[io.StringIO],
    environment: dict[str, str],
    colored: bool,
    plain_environment: pytest.MonkeyPatch,
) -> None:
    plain_environment.setattr("sys.stderr", stream())
    for name, value in environment.items():
        plain_environment.setenv(name, value)
    assert Voice().color is colored


@pytest.mark.parametrize(
    ("columns", "width"), [("60", 60), ("300", 120), ("wide", 100), ("0", 100)]
)
def test_width(columns: str, width: int, plain_environment: pytest.MonkeyPatch) -> None:
    plain_environment.setattr("sys.stderr", io.StringIO())
    plain_environment.setenv("COLUMNS", columns)
    assert Voice().width == width
