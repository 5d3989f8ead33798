"""``fp16doctor weights``: what a checkpoint would lose in fp16 or bf16, without a model.

Must not know how a file is read, nor how a table is laid out.
"""

from __future__ import annotations

from pathlib import Path

import click


@click.command("weights", epilog="Exit status: 0; 2 usage; 4 the file could not be read.")
@click.option(
    "--to",
    "to",
    multiple=True,
    metavar="FORMAT",
    help="A format to cast to; may be given again.  [default: fp16 and bf16]",
)
@click.option("--all", "every", is_flag=True, help="List tensors without a loss as well.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON in place of the table.")
@click.argument("checkpoint", metavar="CHECKPOINT", type=click.Path(path_type=Path))
def weights(to: tuple[str, ...], every: bool, as_json: bool, checkpoint: Path) -> None:
    """Show which tensors of CHECKPOINT overflow, become subnormal or lose small values in a cast.

    CHECKPOINT is a file of torch.save or safetensors, the index of one in several parts, or a
    folder that holds one. No code of the file is run: objects of its own classes are read as
    containers.
    """
    from fp16doctor.diagnose.checkpoint import affected
    from fp16doctor.errors import UsageError
    from fp16doctor.record.checkpoint import read_checkpoint
    from fp16doctor.report.weights_page import weights_json, weights_text

    if not checkpoint.exists():
        raise UsageError(
            f"no such file: '{checkpoint}'; name a checkpoint of torch.save or safetensors",
            "no-such-file",
        )
    found = read_checkpoint(checkpoint, to or ("fp16", "bf16"))
    if as_json:
        click.echo(weights_json(found), nl=False)
        return
    shown = found.tensors if every else affected(found)
    click.echo(weights_text(found, shown), nl=False)
