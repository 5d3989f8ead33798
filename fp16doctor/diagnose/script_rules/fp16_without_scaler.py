"""The loss of an fp16 autocast block is taken backward without a loss scale.

What it checks:
    `loss.backward()` of a value computed in an fp16 autocast block, in the same function or in one
    of the file that returns it, in a file that names no scaler, no library that brings one, and
    touches no `.grad`.

Why it matters:
    Gradients of fp16 ops are fp16: those of 2⁻²⁵ or less become zero. A mean over many elements or
    a small loss weight is enough to put most of them there.

Example:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()

Remedy:
    `torch.amp.GradScaler`: `scale(loss).backward()`, `step(optimizer)`, `update()`; or bf16.

References:
    Micikevicius et al., "Mixed Precision Training", arXiv 1710.03740, section 3.2
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import (
    Autocast,
    enclosing,
    loss_backwards,
    scaled_in_file,
)
from fp16doctor.diagnose.script_reading.order import follows
from fp16doctor.diagnose.script_reading.patch import Edit, insert_before, replace_call
from fp16doctor.diagnose.script_reading.products import factors
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.steps import plain_steps
from fp16doctor.diagnose.script_reading.torch_words import FLOAT16
from fp16doctor.diagnose.script_reading.tree import receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule

_DEPTH = 4  # helpers that call helpers
_A_SCALE = 8.0  # the smallest loss scale that the paper found enough


@script_rule(code="FD718", name="fp16-without-scaler")
def fp16_without_scaler(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per backward of an fp16 loss that nothing scales."""
    if "autocast" not in script.text or scaled_in_file(script):
        return
    if any(
        isinstance(n, ast.Attribute) and n.attr == "grad" and not _is_function(script, n)
        for n in script.tree.nodes
    ):
        return
    for call in loss_backwards(script):
        if _scaled_by_hand(script, call):
            continue
        step = _step_after(script, call)
        block = _fp16_source(script, call) if step is not None else None
        if block is not None and step is not None:
            yield _suspicion(script, call, step, block)


def _is_function(script: Script, node: ast.Attribute) -> bool:
    return script.names.dotted(node) == "torch.autograd.grad"


def _scaled_by_hand(script: Script, call: ast.Call) -> bool:
    """A large constant multiplies the loss; whether it is taken out again, other rules judge."""
    sizes = [script.number(f.node) for f in factors(script, receiver(call)) if not f.divides]
    return any(size is not None and size >= _A_SCALE for size in sizes)


def _step_after(script: Script, call: ast.Call) -> ast.Call | None:
    here = script.place(call)
    return next((s for s in plain_steps(script) if follows(here, script.place(s))), None)


def _fp16_source(script: Script, call: ast.Call) -> Autocast | None:
    """The fp16 block in which something that the loss is computed from was called."""
    return _source(script, receiver(call), script.tree.function(call), 0)


def _source(script: Script, value: ast.expr, function: ast.AST, depth: int) -> Autocast | None:
    inner = []
    for node in script.closure(value):
        if isinstance(node, ast.Call) and script.tree.function(node) is function:
            block = enclosing(script, node)
            if block is None:
                inner.append(script.names.called(node))
            elif block.dtype == FLOAT16 and block.enabled is True:
                return block if not _without_grad(script, node) else None
    for helper in dict.fromkeys(inner) if depth < _DEPTH else ():
        for part in script.tree.within(helper) if isinstance(helper, ast.FunctionDef) else ():
            if isinstance(part, ast.Return) and part.value is not None:
                block = _source(script, part.value, helper, depth + 1)  # type: ignore[arg-type]
                if block is not None:
                    return block
    return None


def _without_grad(script: Script, node: ast.AST) -> bool:
    blocks = [a for a in script.tree.ancestors(node) if isinstance(a, ast.With)]
    return any("no_grad" in spelled(i) for b in blocks for i in b.items)


def _suspicion(script: Script, call: ast.Call, step: ast.Call, block: Autocast) -> Suspicion:
    return Suspicion(
        node=call,
        what=f"`{spelled(call)}` of an fp16 autocast block runs without a loss scale",
        reason=(
            "Gradients of fp16 ops are kept in fp16, where 2⁻²⁵ and less is zero; no line of the "
            "file scales the loss."
        ),
        advice="scale the loss with torch.amp.GradScaler, or autocast to bf16",
        edits=_edits(script, call, step, block),
    )


def _edits(script: Script, call: ast.Call, step: ast.Call, block: Autocast) -> list[Edit]:
    loops, statements = script.place(call).loops, list(map(script.tree.statement, (call, step)))
    if not loops or call.args or call.keywords:
        return []
    device = f'"{block.device}"' if block.device else ""
    loss, optimizer = spelled(receiver(call)), spelled(receiver(step))
    stepped = f"scaler.step({optimizer})", "scaler.update()"
    return [
        insert_before(script.lines, loops[-1], f"scaler = torch.amp.GradScaler({device})"),
        *replace_call(script.lines, statements[0], call, f"scaler.scale({loss}).backward()"),
        *replace_call(script.lines, statements[1], step, *stepped),
    ]
