"""GitHub's workflow commands: place, level, escapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fp16doctor.report.annotations import command, diagnosis_github
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.location import SourceLine

HandMade = dict[str, Callable[[], Diagnosis]]


def test_one_line_a_finding_with_its_place_cause_and_cure(overflow: Diagnosis) -> None:
    error, note = diagnosis_github(overflow).splitlines()
    head = "::error file=train.py,line=40,title=FD101 activation-overflow::`blocks.2.ffn.wo`"
    assert error.startswith(head)
    assert error.endswith("%0Ado: train in bf16 instead of fp16 (verified)")
    assert "%0AFirst op whose fp16 result is infinite" in error
    assert note.startswith("::notice title=FD104 gradient-overflow::2 steps were skipped")


@pytest.mark.parametrize(
    ("script", "file"),
    [
        ("examples/train.py", "examples/train.py"),
        ("./train.py", "train.py"),
        ("../train.py", "../train.py"),
        ("a\\train.py", "a/train.py"),
        ("package.train", "train.py"),  # of a module, files are named from the working folder
    ],
)
def test_files_are_named_from_the_folder_of_the_start(
    script: str, file: str, overflow: Diagnosis
) -> None:
    moved = replace(overflow, run=replace(overflow.run, script=script))
    assert f" file={file},line=40" in diagnosis_github(moved)


def test_the_users_own_line_is_named_where_the_op_lies_in_a_library(overflow: Diagnosis) -> None:
    finding = overflow.findings[0]
    assert finding.site is not None
    own = SourceLine("train.py", 7, "main", "loss = model(x)")
    site = replace(finding.site, caller=own)
    text = diagnosis_github(replace(overflow, findings=(replace(finding, site=site),)))
    assert "file=train.py,line=7," in text


def test_nothing_examined_is_a_warning(hand_made: HandMade) -> None:
    (line,) = diagnosis_github(hand_made["never-trained"]()).splitlines()
    assert line.startswith("::warning title=nothing was examined::")
    assert diagnosis_github(hand_made["healthy"]()) == ""


@pytest.mark.parametrize(
    ("text", "message", "in_property"),
    [
        ("50 %", "50 %25", "50 %25"),
        ("a: b, c", "a: b, c", "a%3A b%2C c"),
        ("a\nb", "a%0Ab", "a\\nb"),
        ("a\r\nb", "a%0A%0Ab", "a\\r\\nb"),
        ("%0A::error::x", "%250A::error::x", "%250A%3A%3Aerror%3A%3Ax"),
        ("\x1b[31m", "\\x1b[31m", "\\x1b[31m"),
    ],
)
def test_escapes(text: str, message: str, in_property: str) -> None:
    assert command("error", text, file=text) == f"::error file={in_property}::{message}"


def test_a_hostile_name_adds_no_command(overflow: Diagnosis) -> None:
    finding = replace(overflow.findings[0], what="x\n::error::invented", cause="\r::warning::y")
    text = diagnosis_github(replace(overflow, findings=(finding,)))
    assert len(text.splitlines()) == 1
