"""``fp16doctor report``: show a saved diagnosis again.

Must not know how a diagnosis is worded or drawn.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command("report")
@click.argument("diagnosis", metavar="DIAGNOSIS.json", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", metavar="FILE", help="Page to write; - for stdout. [default: beside the JSON]"
)
@click.option("-v", "--verbose", is_flag=True, help="Show all evidence, cures, checks and limits.")
def report(diagnosis: Path, output: str | None, verbose: bool) -> None:
    """Render a saved diagnosis again: the page to a file, the summary to stderr."""
    from fp16doctor.cli.voice import Voice
    from fp16doctor.report.html import render_html, write_atomically
    from fp16doctor.report.terminal import render_terminal
    from fp16doctor.schema.codec import load

    target = _target(diagnosis, output)
    answer = load(diagnosis)
    page = render_html(answer)
    if target is None:
        sys.stdout.buffer.write(page.encode("utf-8"))
    else:
        write_atomically(target, page)
    voice = Voice()
    text = render_terminal(
        answer,
        color=voice.color,
        width=voice.width,
        outputs=(str(target), str(diagnosis)) if target else None,
        verbose=verbose,
    )
    voice.say(text.rstrip("\n"))


def _target(diagnosis: Path, output: str | None) -> Path | None:
    """Where the page goes; None is stdout."""
    from fp16doctor.errors import UsageError

    if not diagnosis.exists():
        message = f"no such file: '{diagnosis}'; name a JSON that scan wrote"
        raise UsageError(message, "no-such-file")
    if output == "-":
        return None
    target = Path(output) if output else diagnosis.with_suffix(".html")
    if target.resolve() == diagnosis.resolve():
        message = f"the page would overwrite '{diagnosis}' itself; name another file with -o"
        raise UsageError(message, "output-is-input")
    return target
