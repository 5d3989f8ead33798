"""A line of source between its neighbours."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp16doctor.record.source_lines import SourceLines
from fp16doctor.schema.location import SourceContext, SourceLine

SCRIPT = """import torch

def f(x):
    y = x * 2
    page = "\x0c"
    return y


f(1)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def around(script: Path, number: int, *, keep_text: bool = True) -> SourceContext | None:
    lines = SourceLines(str(script.parent), keep_text=keep_text)
    code = compile(script.read_text(), str(script), "exec")
    line = lines.line((code, number))
    assert line is not None
    return lines.around(line)


def test_two_lines_on_either_side_without_their_common_indent(script: Path) -> None:
    assert around(script, 4) == SourceContext(
        "train.py", 4, 2, ("", "def f(x):", "    y = x * 2", '    page = "\x0c"', "    return y")
    )
    inner = around(script, 5)
    assert inner is not None
    assert inner.lines[2] == '    page = "\x0c"'  # what ends a page does not end a line


def test_at_either_end_of_a_file_there_are_fewer(script: Path) -> None:
    first, last = around(script, 1), around(script, 9)
    assert first is not None
    assert last is not None
    assert (first.first, first.lines) == (1, ("import torch", "", "def f(x):"))
    assert (last.first, last.lines) == (7, ("", "", "f(1)"))


def test_nothing_of_the_source_is_kept_where_none_is_asked_for(script: Path) -> None:
    assert around(script, 4, keep_text=False) is None


def test_a_line_that_is_not_there_any_more_has_no_neighbours(script: Path) -> None:
    lines = SourceLines(str(script.parent))
    assert lines.around(SourceLine("train.py", 4, "f", "something else")) is None
    assert lines.around(SourceLine("gone.py", 4, "f", "y = x * 2")) is None
    assert lines.around(SourceLine("train.py", 400, "f", "y = x * 2")) is None
