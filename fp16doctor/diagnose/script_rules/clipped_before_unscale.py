"""Gradients are clipped or measured between backward of a scaled loss and `unscale_`.

What it checks:
    A call that clips gradients, or takes a norm of `.grad`, after `scaler.scale(loss).backward()`
    and before `scaler.step(optimizer)` of the same function, with no `unscale_` and no division
    by hand in between; and a penalty on gradients that `torch.autograd.grad` made of a scaled
    loss, where the scale is never divided out.

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
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.steps import calls_between, rescaled_between
from fp16doctor.diagnose.script_reading.torch_words import CLIPS
from fp16doctor.diagnose.script_reading.tree import mentions, method, receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity

_CHANGES = ("mul_", "clamp_")
_REASON = (
    "The gradients carry the loss scale until `{scaler}.step` divides them: {what} larger than the "
    "gradient by that factor."
)


@script_rule(code="FD701", name="clipped-before-unscale")
def clipped_before_unscale(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per line that clips or measures gradients that carry the scale."""
    backwards, steps = scaled_backwards(script), scaler_calls(script, "step")
    for call in script.calls if backwards and steps else ():
        clips = _clips(script, call)
        if not clips and not _measures(script, call):
            continue
        step = _step_of_scaled(script, call, backwards, steps)
        if step is not None:
            yield _suspicion(script, call, step, clips)
    yield from _penalties(script)


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
    if method(call) == "norm" and not script.name(call):
        return mentions(receiver(call), "grad")
    named = script.name(call) in ("torch.norm", "torch.linalg.norm", "torch.linalg.vector_norm")
    return named and bool(call.args) and mentions(call.args[0], "grad")


def _step_of_scaled(
    script: Script, call: ast.Call, backwards: list[ast.Call], steps: list[ast.Call]
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


def _suspicion(script: Script, call: ast.Call, step: ast.Call, clips: bool) -> Suspicion:
    scaler, optimizer = spelled(receiver(step)), spelled(step.args[0])
    verb = "are clipped" if clips else "are measured"
    what = "what meets the threshold is" if clips else "the norm is"
    statement = _outermost(script, call, step)
    return Suspicion(
        node=call,
        what=f"gradients {verb} before `{scaler}.unscale_({optimizer})`",
        reason=_REASON.format(scaler=scaler, what=what),
        advice=f"call `{scaler}.unscale_({optimizer})` after backward and before this line",
        severity=Severity.ERROR if clips else Severity.NOTE,
        edits=[insert_before(script.lines, statement, f"{scaler}.unscale_({optimizer})")],
    )


def _outermost(script: Script, call: ast.Call, step: ast.Call) -> ast.stmt:
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
