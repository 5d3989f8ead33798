"""Tries He's initial weights where a plain network's are too large.

Must not know how a step is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.fixup import oversized_layers, with_he
from fp16doctor.prescribe.remedies.fixup_init import first_step, proof_from
from fp16doctor.replay.layers import Nonlinearity
from fp16doctor.schema.finding import Fault
from fp16doctor.schema.prescription import Prescription, Remedy, RemedyKind

OVERSIZED = "FD502"
_SHOWN = 3  # names in the title


def propose(case: Case) -> Iterator[Prescription]:
    """One prescription for a network that grows by its initial weights, if step 0 was kept."""
    treats = tuple(i for i, f in case.demanding if f.code == OVERSIZED)
    tape = first_step(case)
    if not treats or tape is None or case.bench is None:
        return
    weights = oversized_layers(tape)
    if not weights:
        return
    overflows = tuple(i for i, f in case.demanding if f.fault is Fault.OVERFLOW)
    proof = proof_from(case.bench, tape, lambda t: with_he(t, weights))
    yield Prescription(_remedy(weights), treats + overflows, proof)


def _remedy(weights: dict[str, Nonlinearity]) -> Remedy:
    names = list(weights)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    named = ", ".join(f"`{n}`" for n in names[:_SHOWN]) + more
    return Remedy(
        RemedyKind.FIXUP_INIT,
        f"initialise {named} with the standard deviation √(2/fan_in)",
        change=_code(weights),
        target=tuple(f"module:{n.rpartition('.')[0]}" for n in names),
    )


def _code(weights: dict[str, Nonlinearity]) -> str:
    lines = ["# once, before training, in place of the script's own initialisation"]
    for nonlinearity in dict.fromkeys(weights.values()):
        names = [n for n, kind in weights.items() if kind == nonlinearity]
        lines.append(f"for name in {names!r}:")
        weight = "model.get_parameter(name)"
        lines.append(f"    torch.nn.init.kaiming_normal_({weight}, nonlinearity={nonlinearity!r})")
    return "\n".join(lines)
