"""``fp16doctor confirm-run``: the child of ``scan --confirm``; not meant for people.

Must not know what is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fp16doctor.record.script import Target


@click.command(name="confirm-run", hidden=True, context_settings={"allow_interspersed_args": False})
@click.argument("before")
@click.argument("after")
@click.argument("store")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def confirm_run(before: str, after: str, store: str, command: tuple[str, ...]) -> int:
    """Run a script under the cure that BEFORE recommends; write what was seen to AFTER."""
    from pathlib import Path

    from fp16doctor.pipeline.rerun import Rerun, rerun
    from fp16doctor.record.script import prepare
    from fp16doctor.schema.codec import load, to_json

    device, steps, target = _parsed(list(command))
    found = rerun(prepare(target), Rerun(load(Path(before)), steps, store, device))
    if found is not None:
        Path(after).write_text(to_json(found), encoding="utf-8")
    return 0


def _parsed(words: list[str]) -> tuple[str, int | None, Target]:
    """Return device, steps and target of ``[--device D] [--steps N] [-m] NAME ARGS…``."""
    from fp16doctor.record.script import Target

    device, steps = "auto", None
    if words[0] == "--device":
        device, words = words[1], words[2:]
    if words[0] == "--steps":
        steps, words = int(words[1]), words[2:]
    is_module = words[0] == "-m"
    words = words[is_module:]
    return device, steps, Target(words[0], is_module, tuple(words[1:]))
