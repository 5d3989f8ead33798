"""SGD with a learning rate below the unit roundoff of fp16 updates parameters kept in fp16.

What it checks:
    `torch.optim.SGD` over the parameters of a model that the file casts to fp16, with a learning
    rate below 2⁻¹¹ (4.9e-4).

Why it matters:
    An fp16 weight takes an update only from 2⁻¹² of its size on. With a learning rate of 1e-4 the
    momentum must be 2.4 times as large as the weight itself; smaller updates are rounded away and
    the loss does not move.

Example:
    model = Net().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

Remedy:
    Keep the parameters in fp32 (master weights) and run the forward pass under `torch.autocast`.

References:
    Micikevicius et al., "Mixed Precision Training", arXiv 1710.03740, section 3.1
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.torch_words import FLOAT16, FP16_UNIT_ROUNDOFF
from fp16doctor.diagnose.script_reading.training import (
    cast_calls,
    is_module,
    optimizers,
    stored_format,
    trained_model,
    uncast,
)
from fp16doctor.diagnose.script_reading.tree import argument, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule

_SMALLEST_TAKEN = (
    FP16_UNIT_ROUNDOFF / 2
)  # of the weight's size: half an ulp just below a power of two


@script_rule(code="FD716", name="half-stored-weights")
def half_stored_weights(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per SGD whose small steps fp16 weights cannot take."""
    for call, name in optimizers(script):
        rate = script.number(argument(call, 1, "lr"))
        model = trained_model(script, call) if name == "SGD" else None
        if model is None or rate is None or not 0 < rate < FP16_UNIT_ROUNDOFF:
            continue
        if is_module(script, model) and stored_format(script, model) == FLOAT16:
            yield _suspicion(script, call, model, rate)


def _suspicion(script: Script, call: ast.Call, model: ast.expr, rate: float) -> Suspicion:
    given = argument(call, 1, "lr")
    shown = f"{rate:.3g}" if given is None else script.source(given)
    return Suspicion(
        node=call,
        what=f"SGD with lr {shown} updates the parameters of `{spelled(model)}` in fp16",
        reason=(
            "An fp16 weight takes an update only from 2⁻¹² of its size on: at this rate the "
            f"momentum must be {_SMALLEST_TAKEN / rate:.2g} times as large as the weight or more."
        ),
        advice="keep the parameters in fp32 (master weights) and use torch.autocast",
        edits=uncast(script, cast_calls(script, model, FLOAT16)),
    )
