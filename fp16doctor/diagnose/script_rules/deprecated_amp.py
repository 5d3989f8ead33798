"""Mixed precision is spelled with names that torch has deprecated.

What it checks:
    `torch.cuda.amp.autocast`, `GradScaler`, `custom_fwd`, `custom_bwd`, and those of
    `torch.cpu.amp`, where they are called or decorate and the function has not the current
    spelling as well, for another version of torch.

Why it matters:
    They warn with FutureWarning since torch 2.4. `torch.amp` has the same with the device as an
    argument.

Example:
    scaler = torch.cuda.amp.GradScaler()

Remedy:
    `torch.amp.GradScaler("cuda")`, `torch.amp.autocast("cuda")`,
    `torch.amp.custom_fwd(device_type="cuda")`.

References:
    PyTorch documentation, Automatic Mixed Precision package
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fp16doctor.diagnose.beside_run import matter_of_style
from fp16doctor.diagnose.script_reading.patch import Edit, swap
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity

_OLD = re.compile(
    r"torch\.(cuda|cpu)\.amp\.(?:autocast_mode\.|grad_scaler\.)?"
    r"(autocast|GradScaler|custom_fwd|custom_bwd)$"
)


@script_rule(code="FD725", name="deprecated-amp", stands=matter_of_style)
def deprecated_amp(script: Script) -> Iterator[Suspicion]:
    """Yield one note per deprecated call or decorator."""
    for node in script.tree.nodes:
        if not isinstance(node, (ast.Name, ast.Attribute)):
            continue
        old = _OLD.match(script.names.dotted(node))
        call = script.tree.parents.get(node)
        if old is None or _kept_for_old_versions(script, node, old[2]):
            continue
        if isinstance(call, ast.Call) and call.func is node:
            yield _suspicion(node, old, _edits(script, node, call, old))
        elif _decorates(script, node):
            text = f'torch.amp.{old[2]}(device_type="{old[1]}")'
            yield _suspicion(node, old, swap(script.lines, (node, text)))


def _kept_for_old_versions(script: Script, node: ast.expr, name: str) -> bool:
    """The same function or import has the current spelling too: a choice by torch's version."""
    root = node
    while isinstance(root, ast.Attribute):
        root = root.value
    if isinstance(root, ast.Name) and root.id in script.names.several:
        return True
    current = {f"torch.amp.{name}", f"torch.{name}"}
    function = script.tree.function(node)
    return any(
        script.names.dotted(other) in current
        for other in ast.walk(function)
        if isinstance(other, (ast.Attribute, ast.Name))
    )


def _decorates(script: Script, node: ast.expr) -> bool:
    above = script.tree.parents.get(node)
    return isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)) and (
        node in above.decorator_list
    )


def _suspicion(node: ast.expr, old: re.Match[str], edits: list[Edit]) -> Suspicion:
    device, name = old[1], old[2]
    keyword = "device_type=" if name.startswith("custom_") else ""
    return Suspicion(
        node=node,
        what=f"torch.{device}.amp.{name} is deprecated",
        reason="It warns with FutureWarning since torch 2.4 and will be removed.",
        advice=f'write `torch.amp.{name}({keyword}"{device}", …)`',
        severity=Severity.NOTE,
        edits=edits,
    )


def _edits(script: Script, node: ast.expr, call: ast.Call, old: re.Match[str]) -> list[Edit]:
    if call.args and old[2] == "autocast":
        return []  # its positional arguments have another order in torch.amp
    inside = script.source(call)[len(script.source(node)) + 1 :]
    comma = "" if inside.strip() == ")" else ", "
    keyword = "device_type=" if old[2].startswith("custom_") else ""
    if keyword and call.args:
        return []
    text = f'torch.amp.{old[2]}({keyword}"{old[1]}"{comma}{inside.strip()}'
    return swap(script.lines, (call, text))
