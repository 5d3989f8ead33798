"""The gradient scalers that a file makes itself, and whether all their uses are in it.

Must not know any rule.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import makes_scaler
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.tree import spelled


def own_scalers(script: Script) -> Iterator[str]:
    """Spellings of the scalers that the file makes, outside classes that others extend."""
    found = set()
    for node in script.tree.nodes:
        if not isinstance(node, ast.Assign) or not makes_scaler(script, node.value):
            continue
        if _whole_class(script, node):
            found |= {spelled(t) for t in node.targets if isinstance(t, (ast.Name, ast.Attribute))}
    yield from sorted(found)


def _whole_class(script: Script, node: ast.AST) -> bool:
    """Whether no base class from another file could call update."""
    owner = script.tree.class_of(script.tree.function(node))
    bases = owner.bases if owner is not None else []
    own = (spelled(b) == "object" or script.names.dotted(b).startswith("torch.") for b in bases)
    return all(own)


def stays_here(script: Script, scaler: str) -> bool:
    """Whether the file only calls methods of it."""
    root = scaler.split(".")[0]
    for node in script.tree.nodes:
        if isinstance(node, ast.Call):
            handed = [*node.args, *[k.value for k in node.keywords]]
            if any(spelled(a) in (scaler, root) for a in handed):
                return False
        elif isinstance(node, (ast.Assign, ast.Return, ast.Yield)) and _gives(node.value, scaler):
            return False
    return True


def _gives(value: ast.expr | None, scaler: str) -> bool:
    """Whether the scaler itself is the value, or one of its parts."""
    parts = [] if value is None else [value, *ast.iter_child_nodes(value)]
    return any(spelled(part) == scaler for part in parts)
