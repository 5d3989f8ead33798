"""The documents say nothing that is not there: rules, commands, options, files."""

from __future__ import annotations

import html
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from fp16doctor.diagnose.rule import all_rules
from fp16doctor.diagnose.script_rule import all_script_rules

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RULES = ROOT / "docs" / "rules.md"
PICTURE = ROOT / "docs" / "finding.svg"
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/rules.md"]
START, END = "<!-- rules -->\n", "<!-- /rules -->"
SCRIPT_START, SCRIPT_END = "<!-- script rules -->\n", "<!-- /script rules -->"


def rules_table() -> str:
    rows = [f"| {rule.code} | {rule.name} | {rule.summary} |" for rule in all_rules()]
    return "\n".join(["| Code | Name | What it finds |", "|---|---|---|", *rows]) + "\n"


def script_rules_table() -> str:
    rows = [f"| {rule.code} | {rule.name} | {rule.summary} |" for rule in all_script_rules()]
    return "\n".join(["| Code | Name | What it finds |", "|---|---|---|", *rows]) + "\n"


def code_spans(text: str) -> Iterator[str]:
    """Every line of a fenced block and every inline span."""
    pieces = text.split("```")
    for number, piece in enumerate(pieces):
        yield from piece.splitlines() if number % 2 else re.findall(r"`([^`\n]+)`", piece)


def mentioned_commands(document: str) -> list[list[str]]:
    """``fp16doctor WORD …`` wherever it stands as code, split into words."""
    text = (ROOT / document).read_text(encoding="utf-8")
    calls = (re.search(r"(?:^|[/ ])fp16doctor ([a-z]+\b[^|]*)", span) for span in code_spans(text))
    return [call.group(1).split() for call in calls if call]


def command_group() -> click.Group:
    from fp16doctor.cli import main

    groups = [value for value in vars(main).values() if isinstance(value, click.Group)]
    assert len(groups) == 1
    return groups[0]


def test_the_table_of_rules_is_that_of_the_registry(update_golden: bool) -> None:
    text = RULES.read_text(encoding="utf-8")
    before, rest = text.split(START)
    table, after = rest.split(END)
    if update_golden:
        table = rules_table()
        RULES.write_text(before + START + table + END + after, encoding="utf-8")
    assert table == rules_table(), "accept with --update-golden"


def test_the_table_of_script_rules_is_that_of_the_registry(update_golden: bool) -> None:
    text = RULES.read_text(encoding="utf-8")
    before, rest = text.split(SCRIPT_START)
    table, after = rest.split(SCRIPT_END)
    if update_golden:
        table = script_rules_table()
        RULES.write_text(before + SCRIPT_START + table + SCRIPT_END + after, encoding="utf-8")
    assert table == script_rules_table(), "accept with --update-golden"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_and_option_named_exists(document: str) -> None:
    group = command_group()
    context = click.Context(group)
    calls = mentioned_commands(document)
    assert calls
    for name, *rest in calls:
        command = group.get_command(context, name)
        assert command, f"fp16doctor {name} is no command"
        known = {option for param in command.params for option in param.opts}
        unknown = [word for word in rest if word.startswith("-") and word not in known]
        assert not unknown, f"fp16doctor {name} has no {unknown}"


def test_the_command_that_is_shown_first_scans_an_example() -> None:
    (line,) = [line for line in README.read_text().splitlines() if "fp16doctor scan ex" in line]
    assert line.startswith("python3 -m venv .venv && .venv/bin/pip install . && ")
    script = line.split("fp16doctor scan ")[1].split()[0]
    assert (ROOT / script).is_file()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_named_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    own = r"(?:docs|examples|tests|reports|fp16doctor|\.ci)/[\w./]*\w/?"
    for span in re.findall(r"`([^`\n]+)`", text) + re.findall(r"\]\(([^)#:]+)\)", text):
        if re.fullmatch(own, span):
            assert (ROOT / span).exists(), span


def test_it_stays_a_screen_or_so() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.split("## What it does not do")[0].splitlines()) <= 60
    assert len(text.splitlines()) <= 95


def test_the_picture_is_small_and_loads_nothing() -> None:
    assert f"]({PICTURE.relative_to(ROOT)})" in README.read_text(encoding="utf-8")
    text = PICTURE.read_text(encoding="utf-8")
    assert len(text) < 150_000
    assert text.count("http") == text.count('xmlns="http://www.w3.org/2000/svg"') == 1
    assert "<script" not in text


def test_the_picture_can_be_renewed() -> None:
    drawn = picture_of(ROOT / "tests" / "samples" / "v1-overflow.json")
    ElementTree.fromstring(drawn)
    shown = html.unescape("".join(re.findall(r"<text[^>]*>([^<]*)</text>", drawn)))
    shown = shown.replace("\u00a0", " ")
    assert "train in bf16 instead of fp16 (verified by replay of steps 0, 3 and 4)" in shown
    assert drawn == picture_of(ROOT / "tests" / "samples" / "v1-overflow.json")


def picture_of(document: Path) -> str:
    spec = importlib.util.spec_from_file_location("picture", ROOT / "docs" / "picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.picture(document))
