"""How a script was started, so that it can be started again.

Must not know why.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from fp16doctor.errors import UsageError
from fp16doctor.record.digest import sha256_of
from fp16doctor.record.script import PreparedScript, Target
from fp16doctor.schema.start import ScanStart


@dataclass(frozen=True, slots=True)
class Start:
    """Taken before the script runs: it may change its folder and its environment."""

    target: Target
    steps: int | None  # optimizer attempts after which it is stopped
    folder: str
    environment: dict[str, str]
    device: str = "auto"  # as --device says
    compiled: bool = False  # as --compiled says


def start_of(
    target: Target, steps: int | None, device: str = "auto", *, compiled: bool = False
) -> Start:
    """Return how ``target`` is started now.

    Raises:
        UsageError: not-repeatable, for what can be read only once.
    """
    name = target.name
    plain = os.path.isfile(name) or os.path.isdir(name)
    if not target.is_module and os.path.exists(name) and not plain:
        raise UsageError(
            f"--confirm runs the script a second time, and {name!r} can be read only once; save "
            "it as a file, or leave --confirm out",
            "not-repeatable",
        )
    return Start(target, steps, os.getcwd(), dict(os.environ), device, compiled)


def scan_start(prepared: PreparedScript, steps: int | None, device: str) -> ScanStart:
    """Return what the diagnosis tells of the start; taken before the script runs."""
    file = "" if prepared.located is None else os.path.abspath(prepared.located.file)
    digest = ""
    if os.path.isfile(file):  # what can be read only once is left to the script
        with contextlib.suppress(OSError):
            digest = sha256_of(file)
    known = file if digest else ""
    return ScanStart(os.getcwd(), prepared.target.is_module, steps, device, known, digest)
