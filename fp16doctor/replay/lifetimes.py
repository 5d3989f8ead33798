"""What a replay by itself may forget, and when.

Must not know policies.
"""

from __future__ import annotations

from fp16doctor.replay.lockstep import last_uses
from fp16doctor.replay.scales import loss_scale
from fp16doctor.schema.tape import Tape


def spent(tape: Tape) -> dict[int, list[int]]:
    """Return op index -> storages that neither a later op nor a later step needs.

    Gradients, losses, what they were scaled from, and what the script held at the end are kept.
    """
    operands = (loss_scale(tape, mark).operand for mark in tape.losses)
    kept = {ref.storage for ref in operands if ref is not None} | tape.keys.keys()
    return {i: [n for n in numbers if n not in kept] for i, numbers in last_uses(tape).items()}
