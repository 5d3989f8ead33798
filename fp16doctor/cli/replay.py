"""``fp16doctor replay``: a recorded step under another policy.

Must not know how a step is replayed or how the answer is worded.
"""

from __future__ import annotations

from pathlib import Path

import click

from fp16doctor.cli import statuses
from fp16doctor.cli.file_kinds import Kind, refuse_other
from fp16doctor.cli.help_text import epilog
from fp16doctor.cli.outputs import Output, named
from fp16doctor.schema.what_if import DTYPES, REFERENCES, Question, WhatIf


@click.command(
    "replay",
    short_help="Replay a kept step in other formats, on any machine.",
    epilog=epilog(
        ("fp16doctor scan --save-bundle step.fp16doctor train.py", "keep a step"),
        ("fp16doctor replay step.fp16doctor", "as it ran"),
        ("fp16doctor replay --dtype bf16 step.fp16doctor", "in bf16"),
        ("fp16doctor replay --keep module:encoder.norm step.fp16doctor", "with one module in fp32"),
    ),
)
@click.argument("bundle", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    default="as-run",
    show_default=True,
    help="Format that takes the place of the run's 16-bit format; a run in fp32 is replayed as"
    " autocast would run it.",
)
@click.option(
    "--keep",
    multiple=True,
    metavar="PATTERN",
    help="Part of the step to compute in fp32: module:PATH, function:FILE:NAME, line:FILE:NUMBER,"
    " op:NAME. May be given several times.",
)
@click.option("--loss-scale", type=float, metavar="N", help="Loss scale.  [default: the run's own]")
@click.option(
    "--reference",
    type=click.Choice(REFERENCES),
    default="fp32",
    show_default=True,
    help="Format of the replay that all others are held against.",
)
@click.option(
    "--json",
    "document",
    metavar="FILE",
    type=click.Path(),
    help="Write the answer as JSON; - for standard output.",
)
def replay(
    bundle: Path,
    dtype: str,
    keep: tuple[str, ...],
    loss_scale: float | None,
    reference: str,
    document: str | None,
) -> None:
    """Replay a step that scan --save-bundle kept: what if it had run in other formats?

    The step is replayed as it ran first, and held against what it left behind; then in the
    reference, and as asked for.
    """
    from fp16doctor.cli.outputs import keep_source
    from fp16doctor.pipeline import what_if
    from fp16doctor.record.bundle import read_bundle
    from fp16doctor.report.what_if import render_what_if

    what = "a file that scan --save-bundle wrote"
    statuses.require_file(bundle, what)
    refuse_other(bundle, what, Kind.BUNDLE)
    output = None if document is None else named(document)
    if document is not None and output is not None:
        keep_source(str(bundle), document)
        output.check()
    answer = what_if(read_bundle(bundle), Question(dtype, keep, loss_scale, reference))
    if output is not None:
        _write(output, answer)
    click.echo(render_what_if(answer), nl=False, err=document == "-")


def _write(output: Output, answer: WhatIf) -> None:
    import json

    from fp16doctor.schema.codec import spell

    text = json.dumps(spell(WhatIf, answer), indent=1, allow_nan=False) + "\n"
    output.write(text)
