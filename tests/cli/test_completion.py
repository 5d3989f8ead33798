"""What a shell offers: commands, options, choices, files, codes; and how to switch it on."""

from __future__ import annotations

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from fp16doctor.cli.main import _COMMANDS, fp16doctor


def offered(*words: str) -> list[tuple[str, str]]:
    """(type, word) of what bash is told behind ``fp16doctor WORDS``, the last one half-typed."""
    complete = BashComplete(fp16doctor, {}, "fp16doctor", "_FP16DOCTOR_COMPLETE")
    items = complete.get_completions(list(words[:-1]), words[-1])
    return [(item.type, item.value) for item in items]


def test_commands() -> None:
    assert offered("re") == [("plain", "report"), ("plain", "replay"), ("plain", "repro")]
    assert "confirm-run" not in [word for _, word in offered("")]


@pytest.mark.parametrize(
    "words",
    [
        ("scan", ""),
        ("scan", "train.py", "--data", ""),  # the script's own arguments
        ("scan", "-o", ""),
        ("scan", "--json", ""),
        ("scan", "--save-bundle", ""),
        ("report", ""),
        ("report", "-o", ""),
        ("compare", ""),
        ("compare", "a.json", ""),
        ("replay", ""),
        ("replay", "--json", ""),
        ("repro", ""),
        ("repro", "-o", ""),
        ("lint", ""),
        ("weights", ""),
    ],
)
def test_files(words: tuple[str, ...]) -> None:
    assert [kind for kind, _ in offered(*words)] == ["file"]


@pytest.mark.parametrize(
    ("words", "choices"),
    [
        (("scan", "--fail-on", ""), ["error", "warning", "never"]),
        (("report", "--format", "g"), ["github"]),
        (("scan", "--device", "c"), ["cpu", "cuda"]),
        (("replay", "--dtype", "b"), ["bf16"]),
        (("explain", "fd10"), [f"FD10{n}" for n in range(1, 7)]),
        (("explain", "mask"), ["mask-fill-overflow"]),
        (("scan", "--sa"), ["--save-bundle"]),
    ],
)
def test_choices(words: tuple[str, ...], choices: list[str]) -> None:
    assert [word for _, word in offered(*words)] == choices


def test_every_option_that_names_a_file_completes_files() -> None:
    context = click.Context(fp16doctor)
    for name in _COMMANDS:
        command = fp16doctor.get_command(context, name)
        assert command is not None
        for option in command.params:
            if isinstance(option, click.Option) and "FILE" in (option.metavar or ""):
                assert isinstance(option.type, click.Path), f"{name} {option.opts}"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_help_tells_how_to_switch_it_on(shell: str) -> None:
    assert f"_FP16DOCTOR_COMPLETE={shell}_source fp16doctor" in (
        CliRunner().invoke(fp16doctor, ["--help"]).output
    )
