"""``fp16doctor compare``: two saved diagnoses side by side.

Must not know what counts as a difference (``report.comparison``).
"""

from __future__ import annotations

from pathlib import Path

import click

from fp16doctor.cli import statuses
from fp16doctor.cli.file_kinds import Kind, refuse_other
from fp16doctor.cli.help_text import epilog
from fp16doctor.cli.voice import Voice

_FILE = click.Path(path_type=Path)


@click.command(
    "compare",
    short_help="Say what changed from one diagnosis to another.",
    epilog=epilog(
        ("fp16doctor compare before.json after.json", ""),
        (
            "fp16doctor compare --fail-on error before.json after.json",
            "status 3 where an error appeared",
        ),
    ),
)
@click.argument("before", metavar="BEFORE.json", type=_FILE)
@click.argument("after", metavar="AFTER.json", type=_FILE)
@statuses.fail_on_option("a finding that appeared")
@click.option("-v", "--verbose", is_flag=True, help="Show what stayed, and every range that moved.")
def compare(before: Path, after: Path, fail_on: str, verbose: bool) -> int:
    """Say what appeared, what went and what moved from one diagnosis to another.

    Findings are matched by rule, module, op and function; ranges by module and role, and a range
    has moved when its largest magnitude changed by a binade or more.
    """
    from fp16doctor.report.comparison import compare as compared
    from fp16doctor.report.comparison import render_comparison
    from fp16doctor.schema.codec import load

    for path in (before, after):
        statuses.require_file(path, "a JSON that scan wrote")
        refuse_other(path, "a JSON that scan wrote", Kind.DIAGNOSIS, Kind.JSON)
    older, newer = load(before), load(after)
    found = compared(older, newer)
    click.echo(render_comparison(found, verbose=verbose), nl=False)
    if statuses.reached((f.severity for f in found.appeared), fail_on):
        return statuses.REACHED
    return statuses.not_passed(newer, fail_on, Voice().warn)
