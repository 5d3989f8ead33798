"""Edits of statements: of whole lines, and of one of several that share a line."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from fp16doctor.diagnose.script_reading.patch import (
    Edit,
    diff,
    insert_after,
    insert_before,
    remove,
    replace_statement,
)

SHARED = "a(); b(); c()  # what it does"
Make = Callable[[list[str], ast.stmt], Edit]


def edited(text: str, place: int, make: Make) -> str:
    """Return the line that ``make`` gives for the ``place``-th call statement."""
    lines = text.split("\n")
    found = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Expr)]
    edit = make(lines, found[place])
    return "no edit" if edit.lines is None else "\n".join(edit.lines)


@pytest.mark.parametrize(
    ("place", "make", "wanted"),
    [
        (1, lambda t, s: replace_statement(t, s, "x()"), "a(); x(); c()  # what it does"),
        (1, lambda t, s: replace_statement(t, s, "x()", "y()"),
         "a(); x(); y(); c()  # what it does"),
        (0, lambda t, s: insert_before(t, s, "x()"), "x(); a(); b(); c()  # what it does"),
        (2, lambda t, s: insert_after(t, s, "x()"), "a(); b(); c(); x()  # what it does"),
        (0, remove, "b(); c()  # what it does"),
        (1, remove, "a(); c()  # what it does"),
        (2, remove, "a(); b()  # what it does"),
        (1, lambda t, s: replace_statement(t, s, "if q:", "    x()"), "no edit"),
    ],
)  # fmt: skip
def test_the_others_on_the_line_stay(place: int, make: Make, wanted: str) -> None:
    assert edited(SHARED, place, make) == wanted
    if wanted != "no edit":
        ast.parse(wanted)


def test_the_body_behind_a_colon() -> None:
    text = "if q: a()"
    assert edited(text, 0, remove) == "if q: pass"
    assert edited(text, 0, lambda t, s: replace_statement(t, s, "x()")) == "if q: x()"
    assert edited(text, 0, lambda t, s: insert_after(t, s, "x()")) == "if q: a(); x()"


def test_a_statement_that_is_alone_keeps_its_lines() -> None:
    text = "if q:\n    a(\n        1)  # said\n    b()"
    lines = text.split("\n")
    (first, _) = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Expr)]
    assert replace_statement(lines, first, "x()", "y()") == Edit(2, 3, ("    x()", "    y()"))
    assert remove(lines, first) == Edit(2, 3, ())


def test_what_no_edit_says_has_no_diff() -> None:
    assert diff("t.py", ["a()", ""], [Edit(1, 1, None)]) == ""
    assert diff("t.py", ["a()", ""], [Edit(1, 1, ("b()",))]) != ""
