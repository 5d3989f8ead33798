"""A changed line is put into the script's text, and only where the text holds the line."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from fp16doctor.apply.line_edit import edits_in, line_edit, patched_text
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
        (CHANGE + "\nz = 1", TEXT, "train.py"),
        ("# above the function\n+ def f(): pass\n" + CHANGE, TEXT, "train.py"),
        (CHANGE + "\n# lib.py:3\n- a\n+ b", TEXT, "train.py"),
    ],
)
def test_nothing_else_is_touched(change: str, text: str | None, script: str) -> None:
    assert line_edit(order(change, text, script)) is None


def edited(text: str, change: str) -> str | None:
    return patched_text(text, edits_in(change))


def test_ends_of_lines_are_kept() -> None:
    change = "# t.py:2\n- b = 2\n+ b = 3"
    assert edited("a = 1\r\n\tb = 2\r\n", change) == "a = 1\r\n\tb = 3\r\n"
    assert edited("a = 1\n\tb = 2", change) == "a = 1\n\tb = 3"


def test_several_lines_and_a_block() -> None:
    change = "# t.py:1\n- x = 2\n+ x = 3\n# t.py:3\n- y = x * 1e9\n+ with f():\n+     y = x * 1e9"
    wanted = "x = 3\nif x:\n    with f():\n        y = x * 1e9\nprint(y)\n"
    assert edited(TEXT, change) == wanted
    assert len(edits_in(change)) == 2


def test_a_unified_diff() -> None:
    change = """\
--- a/train.py
+++ b/train.py
@@ -1,2 +1,3 @@
 x = 2
+z = 1
 if x:
@@ -4 +5 @@
-print(y)
+print(z)
"""
    wanted = "x = 2\nz = 1\nif x:\n    y = x * 1e9\nprint(z)\n"
    assert edited(TEXT, change) == wanted
    assert edited(TEXT.replace("x = 2", "x = 4"), change) is None
    part = line_edit(order(change))
    assert part is not None
    assert part.tree is not None
    assert ast.unparse(part.tree) == ast.unparse(ast.parse(wanted))
