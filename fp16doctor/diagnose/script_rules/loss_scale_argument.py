"""`loss_scale=` is given to an optimizer of torch.optim.

What it checks:
    A keyword `loss_scale`, `static_loss_scale` or `dynamic_loss_scale` in the construction of a
    torch.optim optimizer.

Why it matters:
    None of torch's optimizers knows a loss scale: the line raises TypeError. Scaling is done by
    torch.amp.GradScaler.

Example:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, loss_scale=128.0)

Remedy:
    `scaler = torch.amp.GradScaler(init_scale=128.0)`, and `scaler.scale`, `step`, `update`.

References:
    PyTorch documentation, torch.amp.GradScaler
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.patch import without_keyword
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.training import optimizers
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity

_NAMES = {"loss_scale", "static_loss_scale", "dynamic_loss_scale"}


@script_rule(code="FD712", name="loss-scale-argument")
def loss_scale_argument(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per optimizer that is given a loss scale."""
    for call, name in optimizers(script):
        wrong = [k for k in call.keywords if k.arg in _NAMES]
        if not wrong:
            continue
        edit = without_keyword(script.lines, call, wrong[0])
        yield Suspicion(
            node=call,
            what=f"torch.optim.{name} is given `{wrong[0].arg}`, which it does not know",
            reason="The line raises TypeError: GradScaler scales the loss, not the optimizer.",
            advice="leave it out and use "
            f"`torch.amp.GradScaler(init_scale={script.source(wrong[0].value)})`",
            severity=Severity.ERROR,
            edits=[edit] if edit is not None else [],
        )
