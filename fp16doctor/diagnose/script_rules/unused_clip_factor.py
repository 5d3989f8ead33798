"""A factor for clipping gradients is computed and not applied, or a constant is applied for it.

What it checks:
    `limit / (norm + eps)` of a norm of `.grad`, given a name that is read nowhere but in
    comparisons; and, under `if norm > limit`, a multiplication of gradients by a constant.

Why it matters:
    In the first case nothing is clipped. In the second, gradients above the limit are multiplied
    by the same number whatever their norm is, and can stay above the limit.

Example:
    norm = torch.sqrt(sum((p.grad ** 2).sum() for p in params))
    clip = max_norm / (norm + 1e-6)
    if clip < 1:
        for p in params:
            p.grad.mul_(0.1)

Remedy:
    `p.grad.mul_(clip)`; or `torch.nn.utils.clip_grad_norm_`.

References:
    PyTorch documentation, torch.nn.utils.clip_grad_norm_
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.beside_run import trained
from fp16doctor.diagnose.script_reading.patch import swap
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.tree import mentions, method, receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity

_NORMS = {"torch.norm", "torch.linalg.norm", "torch.linalg.vector_norm", "torch.sqrt"}


@script_rule(code="FD730", name="unused-clip-factor", stands=trained)
def unused_clip_factor(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per clip factor that does not reach the gradients."""
    for node in script.tree.nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            name = node.targets[0]
            if isinstance(name, ast.Name) and _is_factor(script, node.value):
                yield from _judged(script, node, name.id)
    for call in _constant_scalings(script):
        norm = _compared_norm(script, call)
        if norm is not None:
            yield _by_norm(script, call, *norm)


def _is_factor(script: Script, value: ast.expr) -> bool:
    """``limit / (norm + eps)``, also inside min or clamp, of a norm of gradients."""
    bounded = method(value) in ("clamp", "clip", "minimum") or spelled(value).startswith("min(")
    named = [n for n in ast.walk(value) if isinstance(n, ast.Name)] if bounded else []
    for node in (n for top in (value, *map(script.single, named)) for n in ast.walk(top)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            below = list(script.closure(node.right))
            norm = any(_is_norm(script, n) for n in below)
            limit = isinstance(node.left, (ast.Name, ast.Constant, ast.Attribute))
            grads = any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in below)
            if norm and limit and grads:
                return True
    return False


def _is_norm(script: Script, node: ast.AST) -> bool:
    if method(node) in ("norm", "sqrt") and isinstance(node, ast.Call):
        return True
    power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
    return power or script.name(node) in _NORMS


def _judged(script: Script, made: ast.Assign, name: str) -> Iterator[Suspicion]:
    function = script.tree.function(made)
    reads = [n for n in script.tree.within(function) if isinstance(n, ast.Name) and n.id == name]
    reads = [n for n in reads if isinstance(n.ctx, ast.Load)]
    if not all(_only_compared(script, n) for n in reads) or not isinstance(function, _FUNCTIONS):
        return
    constants = [c for c in _constant_scalings(script) if script.tree.function(c) is function]
    if constants:
        for call in constants:
            yield _constant(script, call, name)
    elif not any(isinstance(n, ast.Return) and n.value is made.value for n in ast.walk(function)):
        yield _unused(made, name)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)


def _only_compared(script: Script, name: ast.Name) -> bool:
    """Read in a condition or a print, which applies nothing."""
    for above in script.tree.ancestors(name):
        if isinstance(above, ast.Compare):
            return True
        if isinstance(above, ast.Call):
            return spelled(above.func) == "print"
        if isinstance(above, ast.stmt):
            return False
    return False


def _constant_scalings(script: Script) -> list[ast.Call]:
    found = []
    for call in script.methods("mul_"):
        constant = len(call.args) == 1 and isinstance(call.args[0], ast.Constant)
        if constant and mentions(receiver(call), "grad"):
            found.append(call)
    return found


def _compared_norm(script: Script, call: ast.Call) -> tuple[ast.Name, ast.expr] | None:
    """(norm, limit) of the ``if norm > limit`` that the call stands under."""
    for arm in script.place(call).arms:
        test = arm.test
        if not arm.holds or not isinstance(test, ast.Compare) or len(test.ops) != 1:
            continue
        norm, limit = test.left, test.comparators[0]
        if isinstance(test.ops[0], (ast.Gt, ast.GtE)) and isinstance(norm, ast.Name):
            parts = list(script.closure(norm))
            grads = any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in parts)
            if grads and any(_is_norm(script, n) for n in parts):
                return norm, limit
    return None


def _by_norm(script: Script, call: ast.Call, norm: ast.Name, limit: ast.expr) -> Suspicion:
    factor = f"{script.source(limit)} / ({norm.id} + 1e-6)"
    return Suspicion(
        node=call,
        what=f"gradients above a limit are multiplied by a constant, not by `{factor}`",
        reason="The factor does not depend on the norm: a large gradient stays above the limit.",
        advice=f"multiply by `{factor}`",
        severity=Severity.ERROR,
        edits=swap(script.lines, (call.args[0], factor)),
    )


def _constant(script: Script, call: ast.Call, name: str) -> Suspicion:
    return Suspicion(
        node=call,
        what=f"gradients are multiplied by {spelled(call.args[0])}, the clip factor is `{name}`",
        reason="The factor does not depend on the norm: a large gradient stays above the limit.",
        advice=f"multiply by `{name}`",
        severity=Severity.ERROR,
        edits=swap(script.lines, (call.args[0], name)),
    )


def _unused(made: ast.Assign, name: str) -> Suspicion:
    return Suspicion(
        node=made,
        what=f"the clip factor `{name}` is computed and applied to no gradient",
        reason="No line of the function multiplies a gradient by it: nothing is clipped.",
        advice=f"multiply the gradients by `{name}` where it is below 1",
        severity=Severity.ERROR,
    )
