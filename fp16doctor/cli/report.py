"""``fp16doctor report``: show a saved diagnosis again.

Must not know how a diagnosis is worded or drawn.
"""

from __future__ import annotations

from pathlib import Path

import click

from fp16doctor.cli import statuses
from fp16doctor.cli.file_kinds import Kind, refuse_other
from fp16doctor.cli.formats import format_option, stdout_taken, written
from fp16doctor.cli.help_text import epilog
from fp16doctor.cli.outputs import Output, named
from fp16doctor.cli.voice import Voice


@click.command(
    "report",
    short_help="Show a saved diagnosis again: as text, and as a page.",
    epilog=epilog(
        ("fp16doctor report fp16doctor-train.json", "the text, and the page beside it"),
        ("fp16doctor report -v fp16doctor-train.json", "with all evidence and every cure"),
    ),
)
@click.argument("diagnosis", metavar="DIAGNOSIS.json", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(),
    help="The page; - for standard output.  [default: beside the JSON]",
)
@format_option(paste=True)
@statuses.fail_on_option("a finding")
@click.option("-v", "--verbose", is_flag=True, help="Show all evidence, cures, checks and limits.")
def report(diagnosis: Path, output: str | None, form: str, fail_on: str, verbose: bool) -> int:
    """Render a saved diagnosis again: the page to a file, the summary to standard error."""
    from fp16doctor.report.html import render_html
    from fp16doctor.report.terminal import render_terminal
    from fp16doctor.schema.codec import load

    target, voice = _target(diagnosis, output), Voice(verbose=verbose)
    stdout_taken(form, target)
    target.check()
    answer = load(diagnosis)
    target.write(render_html(answer))
    if form == "text":
        text = render_terminal(
            answer,
            color=voice.color,
            width=voice.width,
            outputs=None if target.path is None else (target.shown, str(diagnosis)),
            verbose=verbose,
        )
        voice.say(text.rstrip("\n"))
    else:
        found = written(form, answer)
        click.echo(found, nl=False)
        if form == "paste" and not found:
            voice.warn(f"'{diagnosis}' has no cure with a text to paste")
    return statuses.status_of(answer, fail_on, voice.warn)


def _target(diagnosis: Path, output: str | None) -> Output:
    """Where the page goes."""
    from fp16doctor.errors import UsageError

    statuses.require_file(diagnosis, "a JSON that scan wrote")
    refuse_other(diagnosis, "a JSON that scan wrote", Kind.DIAGNOSIS, Kind.JSON)
    target = named(output or str(diagnosis.with_suffix(".html")))
    if target.path is not None and Path(target.path).resolve() == diagnosis.resolve():
        message = f"the page would overwrite '{diagnosis}' itself; name another file with -o"
        raise UsageError(message, "output-is-input")
    return target
