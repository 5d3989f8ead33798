"""Mixed precision by apex, which torch has had built in since 1.6.

What it checks:
    `amp.initialize` and `FP16_Optimizer` of `apex`.

Why it matters:
    apex.amp is no longer developed and patches torch's functions. Its levels: O0 is fp32; O1 is
    autocast with GradScaler; O2 keeps fp16 weights with fp32 master weights, for which autocast
    with fp32 weights serves; O3 is `model.half()` without master weights, which loses updates.

Example:
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")

Remedy:
    `torch.autocast("cuda", dtype=torch.float16)` around forward and loss, and
    `torch.amp.GradScaler("cuda")`.

References:
    NVIDIA apex documentation, "apex.amp"; PyTorch documentation, Automatic Mixed Precision examples
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.beside_run import matter_of_style
from fp16doctor.diagnose.script_reading.patch import Edit, replace_call, replace_statement
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.tree import argument, method, receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity

_LEVELS = {
    "O0": "O0 is fp32: nothing takes its place",
    "O1": "O1 is torch.autocast with torch.amp.GradScaler",
    "O2": "O2 is torch.autocast with torch.amp.GradScaler and the model left in fp32",
    "O3": "O3 is model.half() without master weights: use torch.autocast with GradScaler instead",
}


@script_rule(code="FD726", name="apex-amp", stands=matter_of_style)
def apex_amp(script: Script) -> Iterator[Suspicion]:
    """Yield one note per call of apex's amp.initialize."""
    for call, name in script.dotted_calls:
        if name.startswith("apex.") and name.endswith(".FP16_Optimizer"):
            yield _wrapped(call)
        if name != "apex.amp.initialize":
            continue
        level = script.word(argument(call, 2, "opt_level"))
        native = _LEVELS.get(level or "", "autocast and GradScaler of torch.amp do the same")
        yield Suspicion(
            node=call,
            what="apex.amp is used" + (f" at level {level}" if level else ""),
            reason="apex.amp is no longer developed; torch has had its own since 1.6.",
            advice=native,
            severity=Severity.NOTE,
            edits=_edits(script, call, level),
        )


def _wrapped(call: ast.Call) -> Suspicion:
    return Suspicion(
        node=call,
        what="an optimizer is wrapped in apex's FP16_Optimizer",
        reason="apex is no longer developed; torch has had mixed precision of its own since 1.6.",
        advice="leave the model in fp32 and use torch.autocast with torch.amp.GradScaler",
        severity=Severity.NOTE,
    )


def _edits(script: Script, call: ast.Call, level: str | None) -> list[Edit]:
    """Initialize -> GradScaler; scale_loss -> scaler.scale; step -> scaler.step, update."""
    if level not in ("O1", "O2"):
        return []
    made = replace_statement(
        script.lines, script.tree.statement(call), 'scaler = torch.amp.GradScaler("cuda")'
    )
    edits = [made]
    for block in script.tree.nodes:
        if isinstance(block, ast.With) and len(block.items) == 1 and len(block.body) == 1:
            scaled = block.items[0].context_expr
            if script.name(scaled) == "apex.amp.scale_loss" and isinstance(scaled, ast.Call):
                edits += _scaled(script, block, scaled)
    return edits


def _scaled(script: Script, block: ast.With, scaled: ast.Call) -> list[Edit]:
    body = block.body[0]
    inner = body.value if isinstance(body, ast.Expr) else None
    if inner is None or method(inner) != "backward" or len(scaled.args) < 2:
        return []
    loss, optimizer = spelled(scaled.args[0]), spelled(scaled.args[1])
    found = [replace_statement(script.lines, block, f"scaler.scale({loss}).backward()")]
    for step in script.methods("step"):
        statement = script.tree.statement(step)
        if spelled(receiver(step)) == optimizer and not step.args:
            new = f"scaler.step({optimizer})", "scaler.update()"
            found += replace_call(script.lines, statement, step, *new)
    return found
