"""What a kept step is like: its formats, its device, whether its loss is scaled.

Must not know what is tried on it.
"""

from __future__ import annotations

from fp16doctor.schema.tape import Tape, refs_in


def format_of(tape: Tape) -> str:
    """Return the 16-bit format that most of a step's results have."""
    names = [r.dtype for c in tape.ops for r in refs_in(c.outputs)]
    return "bf16" if names.count("bfloat16") > names.count("float16") else "fp16"


def formats_of(tape: Tape) -> frozenset[str]:
    """Return the 16-bit formats that results of a step have."""
    names = {r.dtype for c in tape.ops for r in refs_in(c.outputs)}
    return frozenset(n for d, n in (("float16", "fp16"), ("bfloat16", "bf16")) if d in names)


def device_of(tape: Tape) -> str:
    """Return the kind of device that most of a step ran on, or was meant to: "cpu", "cuda"."""
    if tape.device:
        return tape.device
    kinds = [r.device.partition(":")[0] for c in tape.ops for r in refs_in(c.outputs)]
    return "cuda" if kinds.count("cuda") > kinds.count("cpu") else "cpu"


def tape_has_scale(tape: Tape) -> bool:
    """Tell whether the step's loss was multiplied by a GradScaler's scale."""
    return any("_amp_foreach_non_finite_check" in c.op for c in tape.ops)
