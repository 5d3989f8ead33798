"""Autocast runs over weights that are stored in 16 bits: there are no master weights.

What it checks:
    The dtypes in which the parameters are stored, where autocast was on when a model was called.

Why it matters:
    Autocast casts fp32 weights to 16 bits for each use and updates the fp32 ones. Where the stored
    weights have 16 bits themselves, as after loading a checkpoint in its saved dtype, autocast
    changes nothing and small updates are rounded away.

Example:
    model = AutoModel.from_pretrained(path)          # stored as bf16
    with torch.autocast("cuda", dtype=torch.bfloat16): ...

Remedy:
    model.float() before the optimizer is made, or dtype=torch.float32 when loading.

References:
    Micikevicius et al., arXiv 1710.03740, section 3.1; torch documentation, Automatic Mixed
    Precision.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import number
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity

_HALF = {"float16": "fp16", "bfloat16": "bf16"}


@rule(code="FD304", name="half-stored-weights", needs=("recording",))
def half_stored_weights(seen: Observations) -> Iterator[Finding]:
    """Yield one note; what it does to the updates is another rule's to measure."""
    run = seen.recording.run
    stored = dict(run.parameters_by_dtype)
    half = {d: n for d, n in stored.items() if d in _HALF}
    if not run.autocast or not half:
        return
    count, total = sum(half.values()), sum(stored.values())
    name = _HALF[max(half, key=lambda d: half[d])]
    yield Finding(
        code="FD304",
        name="half-stored-weights",
        severity=Severity.NOTE,
        fault=Fault.MISUSE,
        what=f"autocast is on and {number(100 * count / total)} % of the weights are stored in "
        f"{name}",
        cause="Autocast keeps master weights only where the parameters are stored in fp32.",
        site=None,
        evidence=(
            Evidence("weights stored in 16 bits", float(count), "recorded", format=name,
                     count=count, total=total),
        ),
        advice="call `model.float()` before the optimizer is made, and keep autocast",
    )  # fmt: skip
