"""A model in fp32 under autocast, as edits of a script: casts out, the forward in a block.

Only where the text leaves no doubt: every cast of the model is seen, the loss is made by whole
statements in front of its backward, and nothing else is made in 16 bits by hand.

Must not know why the parameters are to be in fp32.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import dtype_of, in_force, loss_backwards
from fp16doctor.diagnose.script_reading.patch import (
    Edit,
    edited,
    indent_of,
    remove,
    swap,
)
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.torch_words import BFLOAT16, FLOAT16
from fp16doctor.diagnose.script_reading.training import (
    cast_calls,
    made_by,
    optimizers,
    trained_format,
    trained_model,
)
from fp16doctor.diagnose.script_reading.tree import method, receiver, spelled
from fp16doctor.diagnose.script_reading.uncasting import uncast

_HALF = (FLOAT16, BFLOAT16)
_DTYPE_WORDS = ("dtype", "torch_dtype")
_TO_HALF = {"half": FLOAT16, "bfloat16": BFLOAT16}
_DEFAULT = ("torch.set_default_dtype", "torch.set_default_tensor_type")


def with_masters(script: Script, dtype: str, device: str) -> list[str] | None:
    """Return the script's lines with the change, None where the text leaves a doubt.

    Args:
        script: a script that trains parameters kept in 16 bits.
        dtype: what the block computes in, "float16" or "bfloat16".
        device: its device as Python.
    """
    models = {spelled(m): (c, m) for c, m in _trained(script)}
    taken = _uncast(script, *next(iter(models.values()))) if len(models) == 1 else None
    if taken is None:
        return None
    (model,) = models
    inputs = _casts_of_inputs(script, model)
    if _other_halves(script, [*taken[0], *inputs]):
        return None
    lines = edited(script.lines, [*taken[1], *uncast(script, inputs)])
    if lines is None:
        return None
    wide = Script("\n".join(lines), script.path)
    return _under_autocast(wide, model, f"with torch.autocast({device}, dtype=torch.{dtype}):")


def _trained(script: Script) -> Iterator[tuple[ast.Call, ast.expr]]:
    for call, _ in optimizers(script):
        model = trained_model(script, call)
        if model is not None:
            yield call, model


def _uncast(
    script: Script, call: ast.Call, model: ast.expr
) -> tuple[list[ast.AST], list[Edit]] | None:
    """The nodes that make the parameters 16 bits wide, and their edits; None where not all show."""
    stored = trained_format(script, call, model)
    casts = cast_calls(script, model, stored) if stored in _HALF else []
    if stored in _HALF and casts:
        return list(casts), uncast(script, casts)
    given = [k for c in made_by(script, model) for k in c.keywords if k.arg in _DTYPE_WORDS]
    words = [k.value for k in given if dtype_of(script, k.value) in _HALF]
    defaults = [c for c, n in script.dotted_calls if n in _DEFAULT and _is_half(script, c)]
    if words and not defaults:
        return list(words), swap(script.lines, *((w, "torch.float32") for w in words))
    if len(defaults) == 1 and not words:
        return list(defaults), [remove(script.lines, script.tree.statement(defaults[0]))]
    return None


def _is_half(script: Script, call: ast.Call) -> bool:
    return bool(call.args) and dtype_of(script, call.args[0]) in _HALF


def _under_autocast(script: Script, model: str, head: str) -> list[str] | None:
    """The lines with the statements that make the loss in a block, where none is around them."""
    backwards, lines = loss_backwards(script), script.lines
    calls = [c for c in script.calls if spelled(c.func) == model]
    if calls and all(in_force(script, c) is not None for c in calls):
        return lines
    span = _making_loss(script, model, backwards[0]) if len(backwards) == 1 else []
    known = script.names.imports.get("torch") == "torch"
    if not span or not known or any(_has_long_text(s) or in_force(script, s) for s in span):
        return None
    first, last = span[0].lineno, span[-1].end_lineno or span[-1].lineno
    body = tuple(f"    {line}" if line.strip() else line for line in lines[first - 1 : last])
    return edited(lines, [Edit(first, last, (indent_of(lines, first) + head, *body))])


def _making_loss(script: Script, model: str, backward: ast.Call) -> list[ast.stmt]:
    """The run of statements from the first call of the model to the one that makes the loss."""
    end = script.tree.statement(backward)
    block = _block_of(script, end)
    loss = {n.id for n in ast.walk(receiver(backward)) if isinstance(n, ast.Name)}
    ahead = block[: block.index(end)] if end in block else []
    makers = [i for i, s in enumerate(ahead) if _binds(s) & loss]
    if not makers or not isinstance(ahead[makers[-1]], (ast.Assign, ast.AugAssign)):
        return []
    calls = [i for i, s in enumerate(ahead) if _calls(s, model)]
    start = min(calls, default=makers[-1])
    span = ahead[start : makers[-1] + 1]
    return span if all(isinstance(s, (ast.Assign, ast.AugAssign, ast.Expr)) for s in span) else []


def _block_of(script: Script, statement: ast.stmt) -> list[ast.stmt]:
    above = script.tree.parents[statement]
    for name in ("body", "orelse", "finalbody"):
        block = getattr(above, name, [])
        if isinstance(block, list) and statement in block:
            return block
    return []


def _binds(statement: ast.stmt) -> set[str]:
    stored = (n for n in ast.walk(statement) if isinstance(n, ast.Name))
    return {n.id for n in stored if isinstance(n.ctx, ast.Store)}


def _calls(statement: ast.stmt, model: str) -> bool:
    return any(isinstance(n, ast.Call) and spelled(n.func) == model for n in ast.walk(statement))


def _has_long_text(statement: ast.stmt) -> bool:
    """A string over several lines would be indented too."""
    texts = (n for n in ast.walk(statement) if isinstance(n, (ast.Constant, ast.JoinedStr)))
    return any(n.end_lineno != n.lineno for n in texts)


def _casts_of_inputs(script: Script, model: str) -> list[ast.Call]:
    """Casts ``x.half()`` among the arguments of the model, or of names that it is given."""
    found: list[ast.AST] = []
    for call in script.calls:
        if spelled(call.func) == model:
            given = [*call.args, *(k.value for k in call.keywords)]
            found += [n for a in given for v in (a, script.single(a)) for n in ast.walk(v)]
    casts = [n for n in found if isinstance(n, ast.Call) and _casts_to_half(script, n)]
    return list(dict.fromkeys(casts))


def _casts_to_half(script: Script, call: ast.Call) -> bool:
    if method(call) in _TO_HALF and not call.args:
        return True
    return method(call) == "to" and any(dtype_of(script, a) in _HALF for a in call.args)


def _other_halves(script: Script, known: list[ast.AST]) -> bool:
    """Whether the text makes anything else in 16 bits: it may not fit what is fp32 then."""
    autocasts = (c for c, name in script.dotted_calls if name.endswith("autocast"))
    inside = {n for k in (*known, *autocasts) for n in ast.walk(k)}
    return any(_is_half_made(script, n, inside) for n in script.tree.nodes if n not in inside)


def _is_half_made(script: Script, node: ast.AST, inside: set[ast.AST]) -> bool:
    if isinstance(node, ast.Call) and method(node) in _TO_HALF:
        return True
    if not isinstance(node, ast.Attribute) or dtype_of(script, node) not in _HALF:
        return False
    statement = script.tree.parents[node]
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return True
    # ``dtype = torch.bfloat16``: what the name is used for counts.
    read = (n for n in script.tree.nodes if isinstance(n, ast.Name))
    return not all(n in inside for n in read if node in script.names.bound(n) and _is_load(n))


def _is_load(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)
