"""Which lines need a cast of their own beside a keep-list, in words.

Must not know how they are found (``replay.bare_products``) or where they are told.
"""

from __future__ import annotations

from fp16doctor.replay.bare_products import bare_products
from fp16doctor.replay.values import HALF
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.policy import KeepRule
from fp16doctor.schema.tape import Tape, refs_in

SHORT = {"float16": "fp16", "bfloat16": "bf16"}
SHOWN = 4  # lines in a sentence


def line_casts(tape: Tape, rules: tuple[KeepRule, ...]) -> tuple[str, ...]:
    """Return ``train.py:24: `att @ v` gets fp32 and bf16: …`` for each line torch refuses."""
    return tuple(_told(tape, site) for site in bare_products(tape, rules))


def places(casts: tuple[str, ...]) -> str:
    """Return what a proof says of them, "" where there are none."""
    if not casts:
        return ""
    lines = [c.partition(": ")[0] for c in casts]
    more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return (
        "replayed with a cast where a product takes fp32 and 16-bit tensors; the script needs "
        f"that cast by hand at {', '.join(lines[:SHOWN])}{more}"
    )


def _told(tape: Tape, site: OpSite) -> str:
    line, name = site.source or site.caller, _format(tape, site)
    where = f"{line.file}:{line.line}" if line is not None else site.op
    text = f"`{line.text}`" if line is not None and line.text else f"`{site.op}`"
    return f"{where}: {text} gets fp32 and {SHORT[name]}: cast what is fp32 with .to(torch.{name})"


def _format(tape: Tape, site: OpSite) -> str:
    given = refs_in((tape.ops[site.index].args, tape.ops[site.index].kwargs))
    return next(r.dtype for r in given if r.dtype in HALF)
