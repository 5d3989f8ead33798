"""Recipes as they circulate: each wrong line is flagged by its rule, and nothing else is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fp16doctor.diagnose.script_engine import lint_script

FOLDER = Path(__file__).parent / "recipes"
MARK = re.compile(r"#\s*<- (FD\d+(?:, FD\d+)*)$")


def recipes() -> Iterator[tuple[str, str]]:
    """(title, script) of every section ``#### title`` of the files."""
    for path in sorted(FOLDER.glob("*.txt")):
        for section in path.read_text().split("#### ")[1:]:
            title, _, text = section.partition("\n")
            yield f"{path.stem}: {title}", text


@pytest.mark.parametrize(("title", "text"), [pytest.param(*r, id=r[0]) for r in recipes()])
def test_flags_the_marked_lines_by_the_rule_that_is_named_and_no_other(
    title: str, text: str
) -> None:
    ast.parse(text)
    marks = [(n, MARK.search(line)) for n, line in enumerate(text.splitlines(), 1)]
    wanted = {(n, code) for n, mark in marks if mark for code in mark[1].split(", ")}
    assert bool(wanted) is ("wrong:" in title)
    findings, unread = lint_script(text, "train.py")
    assert not unread
    assert {(f.line, f.code) for f in findings} == wanted
