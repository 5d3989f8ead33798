"""A GradScaler is made in a script whose only 16-bit format is bf16.

What it checks:
    A GradScaler that is on, in a file where every autocast and every cast to 16 bits is bf16.

Why it matters:
    bf16 has the exponents of fp32, so no gradient needs a scale. The scaler costs a pass over the
    gradients and a synchronisation in every step, and skips steps whose gradients overflow by the
    scale itself.

Example:
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(x), y)

Remedy:
    `GradScaler(enabled=False)`, or no scaler.

References:
    PyTorch documentation, torch.amp.GradScaler;
    https://github.com/pytorch/pytorch/issues/127176
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import autocasts, scaled_backwards, sixteen_bit
from fp16doctor.diagnose.script_reading.patch import swap, with_argument
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.torch_words import BFLOAT16, SCALERS
from fp16doctor.diagnose.script_reading.tree import keyword
from fp16doctor.diagnose.script_rule import Suspicion, script_rule


@script_rule(code="FD713", name="scaler-with-bf16")
def scaler_with_bf16(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per scaler of a bf16 script."""
    used = autocasts(script)
    if not used or any(a.dtype != BFLOAT16 for a in used) or not scaled_backwards(script):
        return
    if sixteen_bit(script) != {BFLOAT16}:
        return
    for call, name in script.dotted_calls:
        if name in SCALERS and script.truth(keyword(call, "enabled"), True) is True:
            flag = keyword(call, "enabled")
            edits = (
                [with_argument(script.lines, call, "enabled=False")]
                if flag is None
                else swap(script.lines, (flag, "False"))
            )
            yield Suspicion(
                node=call,
                what="a GradScaler scales the loss although only bf16 runs in 16 bits",
                reason=(
                    "bf16 has the range of fp32 and needs no loss scale; the scaler costs a pass "
                    "over the gradients in every step and can skip steps."
                ),
                advice="construct the scaler with `enabled=False`, or remove it",
                edits=edits,
            )
