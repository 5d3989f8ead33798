"""Exit statuses, the same for every command, and the option that turns findings into one of them.

Must not know what a finding says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fp16doctor.errors import UsageError
from fp16doctor.schema.finding import Severity

if TYPE_CHECKING:
    from fp16doctor.schema.diagnosis import Diagnosis

Command = TypeVar("Command", bound=Callable[..., Any])

OK, USAGE, REACHED, FAILED, INTERRUPTED = 0, 2, 3, 4, 130

MEANINGS = {
    OK: "done, and nothing reached --fail-on",
    USAGE: "usage: an option, argument or file that cannot be used, so that nothing was done",
    REACHED: "--fail-on reached, or nothing was examined that it could hold for",
    FAILED: "fp16doctor itself failed, or a file is there and cannot be read",
    INTERRUPTED: "stopped by Ctrl-C",
}
OF_SCRIPT = "scan: the script's own status comes first where it is not 0 (1 where it raised)."
ALL = "\b\nExit status of every command:\n" + "\n".join(
    f"  {status:<4} {meaning}" for status, meaning in MEANINGS.items()
)
_LEVELS: dict[str, tuple[Severity, ...]] = {
    "never": (),
    "error": (Severity.ERROR,),
    "warning": (Severity.ERROR, Severity.WARNING),
}


def fail_on_option(of: str) -> Callable[[Command], Command]:
    """``--fail-on error|warning|never``; ``of`` names what is held against it."""
    return click.option(
        "--fail-on",
        type=click.Choice(["error", "warning", "never"]),
        default="never",
        show_default=True,
        help=f"Exit with {REACHED} if {of} is at least this severe.",
    )


def reached(severities: Iterable[Severity], fail_on: str) -> bool:
    """Whether any of the severities is at least as severe as ``--fail-on`` names."""
    return any(severity in _LEVELS[fail_on] for severity in severities)


def status_of(diagnosis: Diagnosis, fail_on: str, warn: Callable[[str], None]) -> int:
    """The status of a diagnosis under ``--fail-on``: what was not examined has not passed."""
    if reached(_severities(diagnosis), fail_on):
        return REACHED
    return not_passed(diagnosis, fail_on, warn)


def not_passed(diagnosis: Diagnosis, fail_on: str, warn: Callable[[str], None]) -> int:
    """REACHED, with a word on it, where nothing was examined that could reach ``--fail-on``."""
    from fp16doctor.report.run_story import not_examined

    reason = not_examined(diagnosis)
    if reason and fail_on != "never":
        warn(
            f"--fail-on {fail_on} cannot be answered: nothing was examined, since {reason};"
            " scan the script that trains, with arguments that let it reach its training loop"
            "  [nothing-examined]"
        )
        return REACHED
    return OK


def _severities(diagnosis: Diagnosis) -> Iterable[Severity]:
    """Of all findings; a step taken on a non-finite loss that none explains is an error too."""
    yield from (finding.severity for finding in diagnosis.findings)
    if any(step.lost for step in diagnosis.steps):
        yield Severity.ERROR


def require_file(path: Path, what: str) -> None:
    """Refuse a path that is no file, before anything is done with it.

    Raises:
        UsageError: no-such-file, is-a-directory.
    """
    if path.is_dir():
        raise UsageError(f"'{path}' is a folder; name {what}", "is-a-directory")
    require_path(path, what)


def require_path(path: Path, what: str) -> None:
    """Refuse a path where there is neither a file nor a folder.

    Raises:
        UsageError: no-such-file.
    """
    if not path.exists():
        raise UsageError(f"no such file: '{path}'; name {what}", "no-such-file")
