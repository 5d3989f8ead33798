"""A GradScaler unscales the gradients of a model that was cast to fp16.

What it checks:
    `scaler.step` or `scaler.unscale_` of an optimizer over the parameters of a model that the file
    casts with `.half()` or `.to(torch.float16)`.

Why it matters:
    Gradients of fp16 parameters are fp16, and the scaler refuses to divide them: ValueError
    "Attempting to unscale FP16 gradients".

Example:
    model = Net().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.step(optimizer)

Remedy:
    Keep the parameters in fp32 and run the forward pass under `torch.autocast`.

References:
    PyTorch documentation, Automatic Mixed Precision package, "Gradient Scaling"
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import makes_scaler, scaler_calls
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.torch_words import FLOAT16
from fp16doctor.diagnose.script_reading.training import (
    cast_calls,
    is_module,
    optimizer_call,
    trained_format,
    trained_model,
)
from fp16doctor.diagnose.script_reading.tree import keyword, receiver, spelled
from fp16doctor.diagnose.script_reading.uncasting import uncast
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity


@script_rule(code="FD714", name="scaler-with-half-model")
def scaler_with_half_model(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per optimizer of fp16 parameters that a scaler steps."""
    seen = set()
    for call in [*scaler_calls(script, "unscale_"), *scaler_calls(script, "step")]:
        optimizer = optimizer_call(script, call.args[0]) if call.args else None
        if optimizer is None or optimizer in seen or not _certain(script, receiver(call)):
            continue
        model = trained_model(script, optimizer)
        if model is None or not is_module(script, model):
            continue
        if trained_format(script, optimizer, model) == FLOAT16:
            seen.add(optimizer)
            casts = cast_calls(script, model, FLOAT16)
            yield Suspicion(
                node=call,
                what=f"`{spelled(call)}` meets fp16 gradients: `{spelled(model)}` is cast to fp16",
                reason="The scaler raises ValueError: it divides fp32 gradients only.",
                advice="keep the parameters in fp32 and run the forward pass under torch.autocast",
                severity=Severity.ERROR,
                edits=uncast(script, casts),
            )


def _certain(script: Script, scaler: ast.expr) -> bool:
    """Whether the object is a scaler that is certainly on."""
    known = script.names.known(scaler)
    on = (script.truth(keyword(v, "enabled"), True) for v in known if isinstance(v, ast.Call))
    plain = all(script.name(v).endswith(".GradScaler") for v in known)  # the sharded one takes fp16
    return bool(known) and plain and all(makes_scaler(script, v) for v in known) and all(on)
