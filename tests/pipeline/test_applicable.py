"""An edit is told only where the file with it is Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp16doctor.pipeline.applicable import applicable
from fp16doctor.pipeline.own_lines import ScriptText
from fp16doctor.schema.prescription import (
    Prescription,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)

TEXT = """\
import torch
def f(x):
    if x: return x.exp()
    y = sum(
        x.exp()
        for _ in range(2))
    return y
"""
BLOCK = "+ with torch.autocast('cpu', enabled=False):\n+     "


def told(change: str, kind: RemedyKind = RemedyKind.FP32_KEEP, folder: str = "") -> str:
    remedy = Remedy(kind, "t", change=change)
    cure = Prescription(remedy, (0,), Verification(Verdict.VERIFIED))
    (got,) = applicable((cure,), ScriptText("train.py", TEXT), folder)
    return got.remedy.change


def at(line: int, new: str, old: str | None = None) -> str:
    there = TEXT.splitlines()[line - 1].strip() if old is None else old
    return f"# train.py:{line}\n- {there}\n{new}"


@pytest.mark.parametrize(
    "change",
    [
        at(3, f"{BLOCK}if x: return x.exp()"),
        at(5, "+ x.float().exp()"),
        at(7, f"{BLOCK}return y"),
        "# train.py:9: call .float() on its inputs",
        "model.half()",
        "",
    ],
)
def test_what_the_file_takes_stays(change: str) -> None:
    assert told(change) == change


@pytest.mark.parametrize("change", [at(5, f"{BLOCK}x.exp()"), at(4, "+ y = sum(x)")])
def test_what_breaks_the_statement_around_it_is_put_into_words(change: str) -> None:
    words = told(change)
    assert words.startswith("# train.py:")
    assert words.endswith("from inputs with .float()")
    assert "\n" not in words
    assert told(change, RemedyKind.CODE_FIX) == ""


def test_a_line_that_is_another_one_by_now_is_put_into_words() -> None:
    assert "+" not in told(at(5, "+ x.float().exp()", old="x.log()"))


def test_other_files_are_read_from_the_scripts_folder(tmp_path: Path) -> None:
    change = at(5, f"{BLOCK}x.exp()").replace("train.py", "lib/part.py")
    assert told(change, folder=str(tmp_path)) == change  # nothing to tell from
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "part.py").write_text(TEXT)
    assert told(change, folder=str(tmp_path)) != change


def test_half_of_a_unified_diff_is_not_told() -> None:
    diff = "--- a/train.py\n+++ b/train.py\n@@ -7 +7 @@\n-    return y\n+    return (y\n"
    assert told(diff, RemedyKind.CODE_FIX) == ""
    assert told(diff.replace("(y", "y.sum()"), RemedyKind.CODE_FIX) != ""
