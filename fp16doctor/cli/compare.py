"""``fp16doctor compare``: two saved diagnoses side by side.

Must not know what counts as a difference (``report.comparison``).
"""

from __future__ import annotations

from pathlib import Path

import click

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_REACHED = {"never": (), "error": ("error",), "warning": ("error", "warning")}


@click.command(
    "compare",
    epilog="Exit status: 3 if a finding appeared that is at least as severe as --fail-on says,"
    " 2 usage, 4 a file that is no diagnosis, else 0.",
)
@click.argument("before", metavar="BEFORE.json", type=_FILE)
@click.argument("after", metavar="AFTER.json", type=_FILE)
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "never"]),
    default="error",
    show_default=True,
    help="Severity of new findings from which the exit status is 3.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show what stayed, and every range that moved.")
def compare(before: Path, after: Path, fail_on: str, verbose: bool) -> int:
    """Say what appeared, what went and what moved from one diagnosis to another.

    Findings are matched by rule, module, op and function; ranges by module and role, and a range
    has moved when its largest magnitude changed by a binade or more.
    """
    from fp16doctor.report.comparison import compare as compared
    from fp16doctor.report.comparison import render_comparison
    from fp16doctor.schema.codec import load

    found = compared(load(before), load(after))
    click.echo(render_comparison(found, verbose=verbose), nl=False)
    worst = found.worst_new()
    return 3 if worst is not None and worst.value in _REACHED[fail_on] else 0
