"""``fp16doctor confirm-run``: the child of ``scan --confirm``; not meant for people.

Must not know what is compared.
"""

from __future__ import annotations

import click


@click.command(name="confirm-run", hidden=True, context_settings={"allow_interspersed_args": False})
@click.argument("before")
@click.argument("after")
@click.argument("store")
@click.option("--device", default="auto")
@click.option("--compiled", is_flag=True)
@click.option("--steps", type=int)
@click.option("-m", "is_module", is_flag=True)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def confirm_run(
    before: str,
    after: str,
    store: str,
    device: str,
    compiled: bool,
    steps: int | None,
    is_module: bool,
    command: tuple[str, ...],
) -> int:
    """Run a script under the cure that BEFORE recommends; write what was seen to AFTER."""
    from pathlib import Path

    from fp16doctor.pipeline.rerun import Rerun, rerun
    from fp16doctor.record.script import Target, prepare
    from fp16doctor.schema.codec import load, to_json

    target = Target(command[0], is_module, command[1:])
    asked = Rerun(load(Path(before)), steps, store, device, compiled)
    found = rerun(prepare(target), asked)
    if found is not None:
        Path(after).write_text(to_json(found), encoding="utf-8")
    return 0
