"""``fp16doctor lint``: reads scripts without running them and shows mistakes in their recipes.

Must not know what a mistake is, nor how one is worded.
"""

from __future__ import annotations

import os
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fp16doctor.cli import statuses
from fp16doctor.cli.file_kinds import Kind, refuse_other
from fp16doctor.cli.help_text import epilog

if TYPE_CHECKING:
    from fp16doctor.schema.script_finding import ScriptFinding, UnreadScript

_SKIPPED = {"__pycache__", "node_modules", "site-packages"}


@click.command(
    "lint",
    short_help="Find mistakes in scripts by reading them; runs nothing.",
    epilog=epilog(
        ("fp16doctor lint train.py", ""),
        ("fp16doctor lint --format github --fail-on error src", "in CI, a folder"),
        after="A file that could not be read has not passed --fail-on either.",
    ),
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    show_default=True,
    help="How findings are written to standard output.",
)
@statuses.fail_on_option("a finding")
@click.argument("paths", metavar="FILES|FOLDERS...", nargs=-1, type=click.Path(path_type=Path))
def lint(form: str, fail_on: str, paths: tuple[Path, ...]) -> int:
    """Find mistakes in mixed-precision recipes by reading the scripts; nothing is run.

    Folders are searched for *.py, hidden folders and installed packages left out. The fix is
    shown as a diff of the script's own lines and not applied.
    """
    files = list(dict.fromkeys(_files(paths)))
    findings: list[ScriptFinding] = []
    unread: list[UnreadScript] = []
    for path in files:
        found, missed = _read(path)
        findings += found
        unread += missed
    click.echo(_rendered(form, findings, unread, len(files)), nl=False)
    reached = statuses.reached((f.severity for f in findings), fail_on)
    return statuses.REACHED if reached or (unread and fail_on != "never") else statuses.OK


def _files(paths: tuple[Path, ...]) -> Iterator[Path]:
    from fp16doctor.errors import UsageError

    if not paths:
        raise UsageError("there is nothing to read; name Python files or folders", "no-files-given")
    for path in paths:
        if path.is_dir():
            yield from _below(path)
        elif path.exists():
            refuse_other(path, "a Python script", Kind.SCRIPT)
            yield path
        else:
            raise UsageError(
                f"no such file: '{path}'; name Python files or folders", "no-such-file"
            )


def _below(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED and not f.startswith("."))
        yield from (Path(root, name) for name in sorted(names) if name.endswith(".py"))


def _read(path: Path) -> tuple[tuple[ScriptFinding, ...], tuple[UnreadScript, ...]]:
    from fp16doctor.diagnose.script_engine import lint_script
    from fp16doctor.schema.script_finding import UnreadScript

    try:
        with tokenize.open(path) as stream:  # honours the file's own encoding line
            text = stream.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return (), (UnreadScript(str(path), 0, reason.partition("\n")[0]),)
    return lint_script(text, str(path))


def _rendered(
    form: str, findings: list[ScriptFinding], unread: list[UnreadScript], n_files: int
) -> str:
    from fp16doctor.cli.voice import Voice
    from fp16doctor.report.script_page import script_github, script_json, script_text

    if form == "json":
        return script_json(findings, unread, n_files)
    if form == "github":
        return script_github(findings, unread)
    return script_text(findings, unread, n_files, Voice().width)
