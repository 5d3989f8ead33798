"""Gradients are clipped or measured between backward of a scaled loss and `unscale_`.

What it checks:
    A line that clips gradients, adds to them what no scale has multiplied (weight decay, noise), or
    measures `.grad`, after `scaler.scale(loss).backward()` and before `scaler.step(optimizer)` of
    the same function, with no `unscale_` and no division by hand in between; and a penalty on
    gradients that `torch.autograd.grad` made of a scaled loss, where the scale is never divided
    out.

Why it matters:
    The threshold meets gradients that carry the loss scale, and the division comes afterwards:
    what is applied is clipped to threshold / scale. With a scale of 65536 a threshold of 1 acts
    like one of 1.5e-5.

Example:
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)

Remedy:
    Call `scaler.unscale_(optimizer)` between backward and clipping; `scaler.step` then does not
    divide again.

References:
    PyTorch documentation, Automatic Mixed Precision examples, "Working with unscaled gradients"
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import (
    is_scaler,
    loss_backwards,
    scaled_backwards,
    scaled_by,
    scaler_calls,
)
from fp16doctor.diagnose.script_reading.order import follows
from fp16doctor.diagnose.script_reading.patch import insert_before
from fp16doctor.diagnose.script_reading.products import factors
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.steps import calls_between, rescaled_between
from fp16doctor.diagnose.script_reading.torch_words import CLIPS
from fp16doctor.diagnose.script_reading.tree import mentions, method, receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity

_USES = {
    "clipped": "what meets the threshold is larger than the gradient by that factor",
    "measured": "what is read is larger than the gradient by that factor",
    "changed": "what is added here is divided with them, and ends too small by that factor",
}
_NOISE = {"torch.randn", "torch.randn_like", "torch.rand_like", "torch.normal"}
_MEASURES = ("norm", "mean", "std", "var", "max", "min")
_CHANGES = ("mul_", "clamp_")
_REASON = "The gradients carry the loss scale until `{scaler}.step` divides them: {what}."


@script_rule(code="FD701", name="clipped-before-unscale")
def clipped_before_unscale(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per line that clips or measures gradients that carry the scale."""
    backwards, steps = scaled_backwards(script), scaler_calls(script, "step")
    for node in script.tree.nodes if backwards and steps else ():
        use = _use(script, node)
        step = _step_of_scaled(script, node, backwards, steps) if use else None
        if step is not None and isinstance(node, (ast.expr, ast.stmt)):
            yield _suspicion(script, node, step, use)
    yield from _penalties(script)


def _use(script: Script, node: ast.AST) -> str:
    """What ``node`` does to gradients that a scale makes wrong; empty for nothing."""
    if isinstance(node, ast.AugAssign):
        added = isinstance(node.op, (ast.Add, ast.Sub)) and _unscaled(
            script, node.target, node.value
        )
        return "changed" if added else ""
    if not isinstance(node, ast.Call):
        return ""
    if _clips(script, node):
        return "clipped"
    if method(node) in ("add_", "sub_") and node.args:
        return "changed" if _unscaled(script, receiver(node), node.args[0]) else ""
    return "measured" if _measures(script, node) else ""


def _unscaled(script: Script, target: ast.expr, added: ast.expr) -> bool:
    """Whether a ``.grad`` gets its own parameter or noise added, which carry no scale."""
    grads = [n for n in ast.walk(target) if isinstance(n, ast.Attribute) and n.attr == "grad"]
    if not grads:
        return False
    owner = spelled(grads[0].value)
    own = {owner, f"{owner}.data", f"{owner}.detach()"}
    parts = [factor.node for factor in factors(script, added)]
    return any(spelled(p) in own or script.name(p) in _NOISE for p in parts)


def _clips(script: Script, call: ast.Call) -> bool:
    in_place = method(call) in ("clamp_", "clip_") and mentions(call.func, "grad")
    return script.name(call) in CLIPS or in_place or _own_clip(script, call)


def _own_clip(script: Script, call: ast.Call) -> bool:
    """A function of the file that changes ``.grad`` by a norm, and knows no scaler."""
    bound = script.names.bound(call.func) if isinstance(call.func, ast.Name) else []
    own = bound[0] if len(bound) == 1 else None
    if not isinstance(own, ast.FunctionDef):
        return False
    text = spelled(own)
    knows = "scale" in text or "backward" in text or ".step(" in text
    changes = any(f".grad{data}.{how}(" in text for data in ("", ".data") for how in _CHANGES)
    return changes and not knows and ("norm" in text or "sqrt" in text or "clamp_" in text)


def _measures(script: Script, call: ast.Call) -> bool:
    if method(call) in _MEASURES and not script.name(call):
        return mentions(receiver(call), "grad") and not _tests(call)
    if method(call) == "add_histogram":
        return any(mentions(a, "grad") for a in call.args)
    named = script.name(call) in ("torch.norm", "torch.linalg.norm", "torch.linalg.vector_norm")
    return named and bool(call.args) and mentions(call.args[0], "grad")


def _tests(call: ast.Call) -> bool:
    """Whether it asks for inf and NaN, which no scale changes."""
    asked = ("isnan", "isinf", "isfinite")
    return any(isinstance(n, ast.Attribute) and n.attr in asked for n in ast.walk(call))


def _step_of_scaled(
    script: Script, call: ast.AST, backwards: list[ast.Call], steps: list[ast.Call]
) -> ast.Call | None:
    """The scaler's step that divides the gradients only after ``call``; None if not certain."""
    here = script.place(call)
    before = [b for b in loss_backwards(script) if follows(script.place(b), here)]
    if not before or before[-1] not in backwards:
        return None
    scaler = scaled_by(script, before[-1])
    assert scaler is not None, "taken from scaled backwards"
    after = [s for s in script.methods("step") if follows(here, script.place(s))][:1]
    same = [s for s in after if s in steps and spelled(receiver(s)) == spelled(scaler) and s.args]
    if not same or rescaled_between(script, before[-1], call):
        return None
    helpers = calls_between(script, before[-1], call, reaching=scaler)
    return None if helpers else after[0]


def _suspicion(script: Script, node: ast.expr | ast.stmt, step: ast.Call, use: str) -> Suspicion:
    scaler, optimizer = spelled(receiver(step)), spelled(step.args[0])
    statement = _outermost(script, node, step)
    return Suspicion(
        node=node,
        what=f"gradients are {use} before `{scaler}.unscale_({optimizer})`",
        reason=_REASON.format(scaler=scaler, what=_USES[use]),
        advice=f"call `{scaler}.unscale_({optimizer})` after backward and before this line",
        severity=Severity.NOTE if use == "measured" else Severity.ERROR,
        edits=[insert_before(script.lines, statement, f"{scaler}.unscale_({optimizer})")],
    )


def _outermost(script: Script, call: ast.AST, step: ast.Call) -> ast.stmt:
    """The statement around ``call`` that stands beside the step: a loop over parameters is one."""
    beside = script.tree.parents[script.tree.statement(step)]
    statement = script.tree.statement(call)
    for above in [statement, *script.tree.ancestors(statement)]:
        if isinstance(above, ast.stmt) and script.tree.parents.get(above) is beside:
            return above
    return statement


def _penalties(script: Script) -> Iterator[Suspicion]:
    for call, name in script.dotted_calls:
        if name != "torch.autograd.grad" or "get_scale" in script.text:
            continue
        first = script.single(call.args[0]) if call.args else _outputs(script, call)
        if isinstance(first, ast.Call) and method(first) == "scale":
            scaler = receiver(first)
            if is_scaler(script, scaler):
                yield _penalty(call, spelled(scaler))


def _outputs(script: Script, call: ast.Call) -> ast.expr | None:
    given = next((k.value for k in call.keywords if k.arg == "outputs"), None)
    return None if given is None else script.single(given)


def _penalty(call: ast.Call, scaler: str) -> Suspicion:
    return Suspicion(
        node=call,
        what=f"gradients of `{scaler}.scale(…)` are used without dividing by the scale",
        reason=(
            "`torch.autograd.grad` returns gradients that carry the loss scale, and no line of the "
            "file reads the scale to divide it out."
        ),
        advice=f"multiply the gradients by `1 / {scaler}.get_scale()` before they are used",
        severity=Severity.ERROR,
    )
