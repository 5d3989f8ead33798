"""The help of each command: a line that is not cut, examples that are right, all options."""

from __future__ import annotations

import re
import shlex

import click
import pytest
from click.testing import CliRunner

from fp16doctor.cli.main import _COMMANDS, fp16doctor
from fp16doctor.cli.scan import scan


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(fp16doctor, [*arguments, "--help"])
    assert result.exit_code == 0
    return result.output


def test_no_line_of_the_list_of_commands_is_cut() -> None:
    assert "..." not in shown().split("Commands:")[1].split("Exit status")[0]


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_example_is_a_command_with_options_that_exist(name: str) -> None:
    text = shown(name)
    section = text.split("  Examples:\n")[1].split("\n\n")[0]
    lines = [re.split(r" {2,}", line.strip())[0] for line in section.splitlines()]
    assert any(line.startswith(f"fp16doctor {name}") for line in lines)
    for line in lines:
        _, other, *rest = shlex.split(line)
        command = fp16doctor.get_command(click.Context(fp16doctor), other)
        assert command is not None
        command.make_context(other, rest)  # raises for what it does not take


def test_scan_shows_each_of_its_options_under_a_heading() -> None:
    listed = [name for names in scan.groups.values() for name in names]  # type: ignore[attr-defined]
    options = [p for p in scan.get_params(click.Context(scan)) if isinstance(p, click.Option)]
    assert sorted(listed) == sorted(p.opts[-1] for p in options)
    text = shown("scan")
    assert all(f"{heading}:\n" in text for heading in scan.groups)  # type: ignore[attr-defined]
    assert all(re.search(rf"^  .*{name}\b", text, re.MULTILINE) for name in listed)
