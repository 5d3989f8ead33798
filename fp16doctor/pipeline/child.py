"""How this program is started a second time, as a child process.

Must not know which command it is given.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def fp16doctor_again() -> list[str]:
    """Return the start of the command line: this interpreter, with the flags that it runs with."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-m", "fp16doctor"]


def environment(parent: Mapping[str, str]) -> dict[str, str]:
    """Return the parent's environment; this package is found, no byte code is written."""
    package = str(Path(__file__).resolve().parent.parent.parent)
    paths = [parent.get("PYTHONPATH", ""), package]
    return {
        **parent,
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
