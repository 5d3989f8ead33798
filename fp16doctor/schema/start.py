"""How a scan was started and where it kept a step: what another run or another command needs.

Must not know who starts it again (``pipeline.again``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScanStart:
    """Beside ``RunInfo.script`` and ``argv``: what decides how the script ran."""

    folder: str  # absolute, the working folder
    is_module: bool = False  # the script is a module, given by -m
    steps: int | None = None  # optimizer attempts after which it was stopped
    device: str = "auto"  # as --device said
    file: str = ""  # absolute, the script's text; "" where it is in no file
    sha256: str = ""  # of that file


@dataclass(frozen=True, slots=True)
class BundleFile:
    """The bundle that was kept beside a diagnosis."""

    name: str  # of the file, looked for beside the diagnosis first
    path: str  # absolute, where it was written
    sha256: str
    size: int  # bytes
