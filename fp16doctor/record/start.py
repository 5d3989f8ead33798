"""How a script was started, so that it can be started again.

Must not know why.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from fp16doctor.errors import UsageError
from fp16doctor.record.script import Target


@dataclass(frozen=True, slots=True)
class Start:
    """Taken before the script runs: it may change its folder and its environment."""

    target: Target
    steps: int | None  # optimizer attempts after which it is stopped
    folder: str
    environment: dict[str, str]
    device: str = "auto"  # as --device says


def start_of(target: Target, steps: int | None, device: str = "auto") -> Start:
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
    return Start(target, steps, os.getcwd(), dict(os.environ), device)
