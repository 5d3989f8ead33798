"""`half()` is called on an optimizer.

What it checks:
    `.half()`, `.bfloat16()` or `.float()` on an object that torch.optim made.

Why it matters:
    Optimizers have no such method: the line raises AttributeError. The state takes the format of
    the parameters, and 16 bits would lose it: Adam's second moment underflows in fp16.

Example:
    optimizer = torch.optim.Adam(model.parameters()).half()

Remedy:
    Leave it out; keep parameters in fp32 and run the forward pass under `torch.autocast`.

References:
    PyTorch documentation, torch.optim.Optimizer
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.patch import remove, swap
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.training import optimizer_call
from fp16doctor.diagnose.script_reading.tree import method, receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity


@script_rule(code="FD711", name="half-optimizer")
def half_optimizer(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per cast of an optimizer."""
    for call in script.methods("half", "bfloat16", "float"):
        inner = receiver(call)
        if call.args or optimizer_call(script, inner) is None:
            continue
        statement = script.tree.statement(call)
        alone = isinstance(statement, ast.Expr) and statement.value is call
        yield Suspicion(
            node=call,
            what=f"`{method(call)}()` is called on an optimizer, which has no such method",
            reason="The line raises AttributeError: an optimizer's state follows its parameters.",
            advice="leave it out; keep the parameters in fp32 and use torch.autocast",
            severity=Severity.ERROR,
            edits=[remove(script.lines, statement)]
            if alone
            else swap(script.lines, (call, spelled(inner))),
        )
