"""A changed line is put into the script's text, and only where the text holds the line."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from fp16doctor.apply.line_edit import edited_text, line_edit
from fp16doctor.apply.part import Order
from fp16doctor.schema.prescription import Remedy, RemedyKind
from fp16doctor.schema.recording import Outcome, OutcomeKind, RunInfo

TEXT = "x = 2\nif x:\n    y = x * 1e9\nprint(y)\n"
CHANGE = "# train.py:3\n- y = x * 1e9\n+ y = x * 1e4"


def order(change: str, text: str | bytes | None = TEXT, script: str = "folder/train.py") -> Order:
    run = RunInfo(script, (), Outcome(OutcomeKind.FINISHED), "", "", "", "cpu", "", 0.0)
    lines: Any = None
    return Order(Remedy(RemedyKind.CODE_FIX, "t", change=change), (), run, lines, text)


@pytest.mark.parametrize("text", [TEXT, TEXT.encode()])
def test_the_line_is_changed_where_it_stands(text: str | bytes) -> None:
    part = line_edit(order(CHANGE, text))
    assert part is not None
    assert part.tree is not None
    assert ast.unparse(part.tree) == ast.unparse(ast.parse(TEXT.replace("1e9", "1e4")))


@pytest.mark.parametrize(
    ("change", "text", "script"),
    [
        ("", TEXT, "train.py"),
        ("put an eps below the root", TEXT, "train.py"),
        (CHANGE.replace(":3", ":2"), TEXT, "train.py"),
        (CHANGE.replace(":3", ":300"), TEXT, "train.py"),
        (CHANGE, TEXT, "other.py"),
        (CHANGE, None, "train.py"),
        (CHANGE + "\n+ z = 1", TEXT, "train.py"),
    ],
)
def test_nothing_else_is_touched(change: str, text: str | None, script: str) -> None:
    assert line_edit(order(change, text, script)) is None


def test_ends_of_lines_are_kept() -> None:
    assert edited_text("a = 1\r\n\tb = 2\r\n", 2, "b = 2", "b = 3") == "a = 1\r\n\tb = 3\r\n"
