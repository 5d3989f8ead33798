"""``fp16doctor weights``: what a checkpoint would lose in fp16 or bf16, without a model.

Must not know how a file is read, nor how a table is laid out.
"""

from __future__ import annotations

from pathlib import Path

import click

from fp16doctor.cli import statuses
from fp16doctor.cli.file_kinds import Kind, refuse_other
from fp16doctor.cli.help_text import epilog


@click.command(
    "weights",
    short_help="Show what tensors of a checkpoint lose in fp16 or bf16.",
    epilog=epilog(
        ("fp16doctor weights model.safetensors", ""),
        ("fp16doctor weights --to fp16 --fail-on error model.pt", "in CI, for one format"),
    ),
)
@click.option(
    "--to",
    "to",
    multiple=True,
    metavar="FORMAT",
    help="A format to cast to; may be given again.  [default: fp16 and bf16]",
)
@click.option("--all", "every", is_flag=True, help="List tensors without a loss as well.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON in place of the table.")
@statuses.fail_on_option(
    "a loss (error: a value that overflows, or is inf or NaN as stored; warning: one that becomes"
    " subnormal or zero)"
)
@click.argument("checkpoint", metavar="CHECKPOINT", type=click.Path(path_type=Path))
def weights(to: tuple[str, ...], every: bool, as_json: bool, fail_on: str, checkpoint: Path) -> int:
    """Show which tensors of CHECKPOINT overflow, become subnormal or lose small values in a cast.

    CHECKPOINT is a file of torch.save or safetensors, the index of one in several parts, or a
    folder that holds one. No code of the file is run: objects of its own classes are read as
    containers.
    """
    from fp16doctor.diagnose.checkpoint import affected, severities
    from fp16doctor.record.checkpoint import read_checkpoint
    from fp16doctor.report.weights_page import weights_json, weights_text

    what = "a checkpoint of torch.save or safetensors"
    statuses.require_path(checkpoint, what)
    refuse_other(checkpoint, what, Kind.CHECKPOINT, Kind.INDEX, Kind.BUNDLE)
    found = read_checkpoint(checkpoint, to or ("fp16", "bf16"))
    if as_json:
        click.echo(weights_json(found), nl=False)
    else:
        shown = found.tensors if every else affected(found)
        click.echo(weights_text(found, shown), nl=False)
    return statuses.REACHED if statuses.reached(severities(found), fail_on) else statuses.OK
