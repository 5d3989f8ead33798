"""Which objects of a script are gradient scalers and autocast blocks, and what they cover.

Must not know any rule.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.torch_words import (
    AUTOCASTS,
    BFLOAT16,
    DTYPES,
    FLOAT16,
    SCALERS,
)
from fp16doctor.diagnose.script_reading.tree import argument, keyword, method, receiver, spelled

_BACKWARD_KEYWORDS = {"gradient", "retain_graph", "create_graph", "inputs"}


@dataclass(frozen=True)
class Autocast:
    """One call of autocast."""

    call: ast.Call
    device: str | None  # None: not shown by the file
    dtype: str | None
    enabled: bool | None
    cache: bool | None = True
    sure: bool = True  # False: something else may stand in its place


def dtype_of(script: Script, node: ast.expr | None) -> str | None:
    """``float16`` for ``torch.half``, and for a name that stands for it alone."""
    if node is None:
        return None
    found = {DTYPES.get(script.names.dotted(v)) for v in script.names.known(node)}
    return found.pop() if len(found) == 1 else None


def read_autocast(script: Script, call: ast.Call) -> Autocast | None:
    """The call as an autocast; None where it is none."""
    name = script.name(call)
    if name not in AUTOCASTS:
        return None
    own = name.split(".")[1] if name.startswith(("torch.cuda.", "torch.cpu.")) else None
    if own:
        device, given = own, argument(call, 1, "dtype")
        flag, cache = argument(call, 0, "enabled"), argument(call, 2, "cache_enabled")
    else:
        device = device_type(script, argument(call, 0, "device_type")) or ""
        given, flag = argument(call, 1, "dtype"), argument(call, 2, "enabled")
        cache = argument(call, 3, "cache_enabled")
    default = {"cuda": FLOAT16, "cpu": BFLOAT16}.get(device)
    dtype = default if given is None else dtype_of(script, given)
    plain = not any(k.arg is None for k in call.keywords)
    enabled = script.truth(flag, True) if plain else None
    return Autocast(call, device or None, dtype, enabled, script.truth(cache, True))


def device_type(script: Script, node: ast.expr | None) -> str | None:
    """``cuda`` for ``"cuda:0"`` and for ``torch.device("cuda")``, also through ``.type``."""
    if node is None:
        return None
    if isinstance(node, ast.Attribute) and node.attr == "type":
        node = node.value
    found = set()
    for value in script.names.known(node):
        if isinstance(value, ast.Call) and script.name(value) == "torch.device" and value.args:
            value = value.args[0]
        text = value.value if isinstance(value, ast.Constant) else None
        found.add(text.split(":")[0] if isinstance(text, str) else None)
    return found.pop() if len(found) == 1 else None


def autocasts(script: Script) -> list[Autocast]:
    """Every autocast of the file that is not certainly off."""
    made = (read_autocast(script, call) for call, _ in script.dotted_calls)
    return [a for a in made if a is not None and a.enabled is not False]


def enclosing(script: Script, node: ast.AST) -> Autocast | None:
    """The autocast that the innermost block around ``node`` in its function enters."""
    for above in script.tree.ancestors(node):
        if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return _decorating(script, above)
        if isinstance(above, (ast.With, ast.AsyncWith)) and node not in _heads(above):
            for item in reversed(above.items):
                found = entered(script, item.context_expr)
                if found is not None:
                    return found
    return None


def _heads(block: ast.With | ast.AsyncWith) -> set[ast.AST]:
    return {n for item in block.items for n in ast.walk(item)}


def _decorating(
    script: Script, function: ast.FunctionDef | ast.AsyncFunctionDef
) -> Autocast | None:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call):
            found = read_autocast(script, decorator)
            if found is not None:
                return found
    return None


def entered(script: Script, node: ast.expr) -> Autocast | None:
    """The autocast that ``with node`` enters, directly or by a name."""
    values = script.names.values(node)
    found = [read_autocast(script, v) for v in values if isinstance(v, ast.Call)]
    first = next((f for f in found if f is not None), None)
    if first is None or len(values) == 1:
        return first
    return Autocast(first.call, first.device, first.dtype, None, first.cache, sure=False)


def in_force(script: Script, node: ast.AST, depth: int = 0) -> Autocast | None:
    """The autocast that ``node`` runs under, also where its function is called under one.

    None where there is none, or where the calls of the function in the file differ.
    """
    here = enclosing(script, node)
    if here is not None:
        return here
    function = script.tree.function(node)
    if depth > 6 or isinstance(function, (ast.Module, ast.Lambda)):
        return None
    calls = list(_runs_of(script, function))
    found = [in_force(script, call, depth + 1) for call in calls]
    if not found or any(f is None for f in found):
        return None
    kinds = {(f.device, f.dtype, f.enabled) for f in found if f is not None}
    return found[0] if len(kinds) == 1 else None


def _runs_of(script: Script, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Calls of a function; for a module's forward also that of the module it is built into."""
    direct = script.names.callers().get(function, [])
    if direct:
        yield from direct
        return
    owner = script.tree.class_of(function)
    if owner is None or function.name != "forward":
        return
    for call in script.calls:
        if script.names.local_class(call) is owner:
            home = script.tree.class_of(script.tree.function(call))
            outer = _method(home, "forward") if home is not None and home is not owner else None
            if outer is None:
                return
            yield outer.body[0]  # runs as the module that holds it runs


def _method(owner: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    found = [n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == name]
    return found[0] if found else None


def makes_scaler(script: Script, node: ast.AST) -> bool:
    """Whether ``node`` constructs a GradScaler that is not certainly off."""
    if not isinstance(node, ast.Call) or script.name(node) not in SCALERS:
        return False
    return script.truth(keyword(node, "enabled"), True) is not False


def is_scaler(script: Script, node: ast.expr) -> bool:
    """Whether ``node`` is a GradScaler: made as one, or used as one where no more is shown."""
    values = script.names.values(node)
    shown = [v for v in values if isinstance(v, ast.expr)]
    shown = [v for v in shown if not (isinstance(v, ast.Constant) and v.value is None)]
    calls = [v for v in shown if isinstance(v, ast.Call)]
    if shown and len(shown) == len(values) and len(calls) == len(shown):
        return all(makes_scaler(script, v) for v in calls)
    if any(makes_scaler(script, v) for v in calls):
        return True
    return not calls and spelled(node) in _used_as_scalers(script)


def _used_as_scalers(script: Script) -> set[str]:
    """Spellings ``x`` of ``x.scale(loss).backward()`` with ``x.step(…)`` or ``x.unscale_(…)``."""
    found = set()
    for call in loss_backwards(script):
        inner = receiver(call)
        if method(inner) == "scale" and isinstance(inner, ast.Call) and len(inner.args) == 1:
            found.add(spelled(receiver(inner)))
    used = {spelled(receiver(c)) for c in script.methods("step", "unscale_") if c.args}
    return found & used


def scaler_calls(script: Script, name: str) -> list[ast.Call]:
    """Calls of a method of a GradScaler."""
    return [c for c in script.methods(name) if is_scaler(script, receiver(c))]


def loss_backwards(script: Script) -> list[ast.Call]:
    """Calls ``loss.backward()``; what takes a tensor by position is a method of something else."""
    return [
        call
        for call in script.methods("backward")
        if not call.args and {k.arg for k in call.keywords} <= _BACKWARD_KEYWORDS
    ]


def scaled_by(script: Script, call: ast.Call) -> ast.expr | None:
    """The scaler of ``scaler.scale(loss).backward()``, also where the product has a name."""
    product = script.single(receiver(call))
    if method(product) == "scale" and isinstance(product, ast.Call):
        return receiver(product) if is_scaler(script, receiver(product)) else None
    return None


def scaled_backwards(script: Script) -> list[ast.Call]:
    """Calls of backward on a loss that a GradScaler scales."""
    return [c for c in loss_backwards(script) if scaled_by(script, c) is not None]


def scaled_in_file(script: Script) -> bool:
    """Whether anything in the file may scale a loss: a scaler, or a library that brings one."""
    roots = {v.split(".")[0] for v in script.names.imports.values()}
    libraries = {
        "apex",
        "accelerate",
        "deepspeed",
        "lightning",
        "pytorch_lightning",
        "transformers",
    }
    if "GradScaler" in script.text or "scale_loss" in script.text or roots & libraries:
        return True
    return any(_may_scale(script, node) for node in script.tree.nodes)


def _may_scale(script: Script, node: ast.AST) -> bool:
    """A name or attribute called a scaler that is not just a number."""
    if isinstance(node, ast.Name):
        return "scaler" in node.id.lower() and script.number(node) is None
    return isinstance(node, ast.Attribute) and "scaler" in node.attr.lower()


def sixteen_bit(script: Script) -> set[str]:
    """The 16-bit formats that the file certainly computes in."""
    found = {a.dtype for a in autocasts(script) if a.dtype and a.enabled is True}
    for call in script.methods("half", "bfloat16", "to"):
        made = {"half": FLOAT16, "bfloat16": BFLOAT16}.get(method(call))
        given = [*call.args, *[k.value for k in call.keywords if k.arg == "dtype"]]
        found |= {made} if made else {d for d in (dtype_of(script, a) for a in given) if d}
    return {f for f in found if f in (FLOAT16, BFLOAT16)}
