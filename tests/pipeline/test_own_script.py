"""A diagnosis names the file that its command line runs, and nothing that is installed."""

from __future__ import annotations

import timeit
from pathlib import Path

import click
import pytest

from fp16doctor.pipeline.own_script import is_own
from fp16doctor.schema.start import ScanStart

TIMEIT, CLICK = timeit.__file__, click.__file__


@pytest.mark.parametrize(
    ("script", "file", "is_module", "own"),
    [
        ("train.py", "w/train.py", False, True),
        ("./sub/../train.py", "w/train.py", False, True),
        ("app", "w/app/__main__.py", False, True),
        ("other.py", "w/train.py", False, False),
        ("train", "w/train.py", True, True),
        ("pkg.train", "w/pkg/train.py", True, True),
        ("pkg.train", "elsewhere/pkg/train.py", True, True),  # found by PYTHONPATH
        ("pkg", "w/pkg/__main__.py", True, True),
        ("pkg.train", "w/train.py", True, False),
        ("timeit", "w/timeit.py", True, False),  # the standard library's may come first
        ("timeit", TIMEIT, True, False),
        (TIMEIT, TIMEIT, False, False),
        ("click", CLICK, True, False),
        (TIMEIT, "w/train.py", False, False),
    ],
)
def test_own(tmp_path: Path, script: str, file: str, is_module: bool, own: bool) -> None:
    start = ScanStart(str(tmp_path / "w"), is_module=is_module, file=str(tmp_path / file))
    assert is_own(start, script) is own
