"""Models, optimizers, losses and gradients of a script, and the format they are kept in.

Must not know any rule.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import dtype_of
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.torch_words import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    is_scheduler,
    optimizer_name,
)
from fp16doctor.diagnose.script_reading.tree import mentions, method, position, receiver, spelled

_CASTS = {"half": FLOAT16, "bfloat16": BFLOAT16, "float": FLOAT32, "double": FLOAT32}
_SAME_OBJECT = {"cuda", "cpu", "train", "eval", "requires_grad_", "to", "type", "apply", *_CASTS}


def made_by(script: Script, node: ast.expr) -> list[ast.Call]:
    """The calls that certainly made ``node``; methods that return the same module are peeled."""
    found: list[ast.Call] = []
    return found if _collect_makers(script, node, found, set()) else []


def _collect_makers(
    script: Script, node: ast.expr, found: list[ast.Call], seen: set[ast.AST]
) -> bool:
    """Add the makers of ``node`` to ``found``; False where one of them is not shown."""
    known = script.names.known(node)
    for value in known:
        if value in seen:
            continue
        seen.add(value)
        if not isinstance(value, ast.Call):
            return False
        if method(value) in _SAME_OBJECT:
            if not _collect_makers(script, receiver(value), found, seen):
                return False
        else:
            found.append(value)
    return bool(known)


def is_module(script: Script, node: ast.expr) -> bool:
    """Whether ``node`` is certainly an nn.Module: torch's own, or of a class of the file."""
    made = made_by(script, node)
    return bool(made) and all(_makes_module(script, call) for call in made)


def _makes_module(script: Script, call: ast.Call) -> bool:
    name = script.name(call)
    if name.startswith("torch.nn.") and not name.startswith("torch.nn.functional."):
        return name.rpartition(".")[2][:1].isupper()
    owner = script.names.local_class(call)
    return owner is not None and is_module_class(script, owner)


def is_module_class(script: Script, owner: ast.ClassDef, depth: int = 0) -> bool:
    """Whether the class derives from torch.nn, as far as the file shows."""
    for base in owner.bases:
        if script.names.dotted(base).startswith("torch.nn."):
            return True
        if isinstance(base, ast.Name) and depth < 5:
            bound = [b for b in script.names.bound(base) if isinstance(b, ast.ClassDef)]
            if any(is_module_class(script, b, depth + 1) for b in bound if b is not owner):
                return True
    return False


def optimizer_call(script: Script, node: ast.expr) -> ast.Call | None:
    """The call of torch.optim that certainly made ``node``."""
    made = [v for v in script.names.known(node) if not _casts_itself(v, node)]
    calls = [v for v in made if isinstance(v, ast.Call) and optimizer_name(script.name(v))]
    return calls[0] if calls and len(calls) == len(made) else None


def _casts_itself(value: ast.expr, node: ast.expr) -> bool:
    """``x.half()`` among the values of ``x``."""
    cast = isinstance(value, ast.Call) and method(value) in _CASTS
    return cast and spelled(receiver(value)) == spelled(node)  # type: ignore[arg-type]


def optimizers(script: Script) -> Iterator[tuple[ast.Call, str]]:
    """Constructions of torch's optimizers, with the class name."""
    for call, name in script.dotted_calls:
        if optimizer_name(name):
            yield call, optimizer_name(name)


def is_optimizer(script: Script, node: ast.expr) -> bool:
    """Made by torch.optim; or, where the file shows no more, stepped and its gradients cleared."""
    if optimizer_call(script, node) is not None:
        return True
    values = script.names.values(node)
    if any(isinstance(v, ast.Call) for v in values):
        return False
    text = spelled(node)
    zeroed = {spelled(receiver(c)) for c in script.methods("zero_grad")}
    stepped = {spelled(receiver(c)) for c in script.methods("step")}
    given = {spelled(c.args[0]) for c in script.methods("step") if c.args}
    return text in zeroed and text in stepped | given


def is_schedule(script: Script, node: ast.expr) -> bool:
    """Whether ``node`` is certainly a learning-rate schedule of torch."""
    made = script.names.known(node)
    return bool(made) and all(is_scheduler(script.name(v)) for v in made)


def trained_model(script: Script, optimizer: ast.Call) -> ast.expr | None:
    """``model`` of ``Adam(model.parameters())``, also inside a comprehension over it."""
    first = optimizer.args[0] if optimizer.args else None
    if first is None:
        first = next((k.value for k in optimizer.keywords if k.arg == "params"), None)
    if first is None:
        return None
    for nodes in (ast.walk(script.single(first)), script.closure(first)):
        for node in nodes:
            if method(node) in ("parameters", "named_parameters") and isinstance(node, ast.Call):
                return receiver(node)
    return None


def stored_format(script: Script, node: ast.expr) -> str | None:
    """The format a module or tensor was cast to; float32 where no cast is seen, None if unclear."""
    found: set[str | None] = set()
    _collect_formats(script, node, found, set())
    casts = {_statement_cast(script, c) for c in _statement_casts(script, node)}
    if FLOAT32 in casts:
        return None  # cast back somewhere
    found = (found | casts) - {FLOAT32}
    if None in found or len(found) > 1:
        return None
    return found.pop() if found else FLOAT32


def _collect_formats(
    script: Script, node: ast.expr, found: set[str | None], seen: set[object]
) -> None:
    for value in script.names.values(node):
        if value in seen:
            continue
        seen.add(value)
        cast = own_cast(script, value) if isinstance(value, ast.AST) else None
        inner = _same_below(script, value)
        if cast is not None or inner is None:
            found.add(cast or _made_format(script, value))
        else:
            _collect_formats(script, inner, found, seen)
            found.update(_statement_cast(script, c) for c in _statement_casts(script, inner))


def _same_below(script: Script, value: object) -> ast.expr | None:
    """What ``value`` is the same object as, or a copy of, in the same format."""
    if not isinstance(value, ast.Call):
        return None
    if script.name(value) == "copy.deepcopy" and value.args:
        return value.args[0]
    if method(value) in ("to", "type") and not _device_only(script, value):
        return None
    return receiver(value) if method(value) in _SAME_OBJECT else None


def _made_format(script: Script, value: object) -> str | None:
    """float32 for a module that is made without a word about its format."""
    if not isinstance(value, ast.Call):
        return None
    made = script.name(value).startswith("torch.nn.") or script.names.local_class(value)
    return FLOAT32 if made and not any(k.arg == "dtype" for k in value.keywords) else None


def cast_calls(script: Script, node: ast.expr, dtype: str) -> list[ast.Call]:
    """The calls that cast ``node`` to ``dtype``: in its own expression, or as a statement."""
    found = [c for c in _statement_casts(script, node) if _statement_cast(script, c) == dtype]
    seen: set[object] = set()
    waiting: list[object] = [*script.names.values(node)]
    while waiting:
        value = waiting.pop()
        if value in seen or not isinstance(value, ast.Call):
            continue
        seen.add(value)
        if own_cast(script, value) == dtype:
            found.append(value)
        if method(value) in _SAME_OBJECT:
            waiting += script.names.values(receiver(value))
    return found


def trained_after(script: Script, optimizer: ast.Call, casts: list[ast.Call]) -> bool:
    """Whether a use of the optimizer may follow the casts: none does where only inference is left.

    Casts in front of the optimizer, and those in other functions, are taken to count.
    """
    made, statement = script.place(optimizer), script.tree.statement(optimizer)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = {spelled(t) for t in targets}
    for cast in casts:
        here = script.place(cast)
        if here.function is not made.function or here.at < made.at or here.loops or not names:
            return True
        reads = [n for n in script.tree.within(here.function) if isinstance(n, ast.expr)]
        if any(spelled(n) in names and position(n) > here.at for n in reads if _is_read(n)):
            return True
    return not casts


def trained_format(script: Script, optimizer: ast.Call, model: ast.expr) -> str | None:
    """The format that ``model`` has while ``optimizer`` steps it; None if unclear."""
    stored = stored_format(script, model)
    if stored not in (FLOAT16, BFLOAT16):
        return stored
    casts = cast_calls(script, model, stored)
    return stored if trained_after(script, optimizer, casts) else FLOAT32


def _is_read(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)


def own_cast(script: Script, call: ast.AST) -> str | None:
    """The format that ``x.half()`` or ``x.to(dtype)`` casts to; None for anything else."""
    if not isinstance(call, ast.Call):
        return None
    if method(call) in _CASTS and not call.args:
        return _CASTS[method(call)]
    if method(call) in ("to", "type"):
        given = [*call.args, *[k.value for k in call.keywords if k.arg == "dtype"]]
        return next((d for d in (dtype_of(script, a) for a in given) if d), None)
    return None


def _device_only(script: Script, call: ast.Call) -> bool:
    """Whether ``.to(…)`` moves and does not cast: a string, ``torch.device`` or a rank."""
    if len(call.args) != 1 or any(k.arg == "dtype" for k in call.keywords):
        return False
    for value in script.names.values(call.args[0]):
        if not isinstance(value, (ast.Constant, ast.Call)):
            return False
        if isinstance(value, ast.Call) and script.name(value) != "torch.device":
            return False
    return True


def _statement_casts(script: Script, node: ast.expr) -> list[ast.Call]:
    """``model.half()`` as a statement, in the same scope as ``node``: it casts in place."""
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return []
    text, function = spelled(node), script.tree.function(node)
    found = []
    for call in script.methods(*_CASTS, "to"):
        stands_alone = isinstance(script.tree.parents.get(call), ast.Expr)
        here = script.tree.function(call) is function
        if stands_alone and here and spelled(receiver(call)) == text:
            found.append(call)
    return found


def _statement_cast(script: Script, call: ast.Call) -> str | None:
    return own_cast(script, call) or FLOAT32


def gradient_scalings(script: Script) -> list[ast.AST]:
    """Statements and calls that multiply or divide a ``.grad``, or assign one anew."""
    found: list[ast.AST] = []
    for node in script.tree.nodes:
        if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Mult, ast.Div)):
            if mentions(node.target, "grad"):
                found.append(node)
        elif isinstance(node, ast.Assign) and any(mentions(t, "grad") for t in node.targets):
            found.append(node)
        elif isinstance(node, ast.Call):
            name = script.name(node).rpartition(".")[2]
            in_place = method(node) in ("mul_", "div_", "copy_") and mentions(node.func, "grad")
            if in_place or name in ("_foreach_mul_", "_foreach_div_", "_foreach_copy_"):
                found.append(node)
    return found
