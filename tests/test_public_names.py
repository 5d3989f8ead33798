"""The names that ``import fp16doctor`` offers: listed before they are loaded, and all there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fp16doctor

ROOT = Path(__file__).parents[1]


def test_every_public_name_is_listed_before_it_is_loaded() -> None:
    code = (
        "import sys, fp16doctor\n"
        "print(*(name for name in fp16doctor.__all__ if name not in dir(fp16doctor)))\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "\nFalse\n"


@pytest.mark.parametrize("name", fp16doctor.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(fp16doctor, name)


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'scan_'"):
        fp16doctor.scan_  # type: ignore[attr-defined]  # noqa: B018
