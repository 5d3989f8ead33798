"""Modules of a file that are certainly kept in fp16: cast themselves, or part of one that is.

Must not know any rule.
"""

from __future__ import annotations

import ast

from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.torch_words import FLOAT16
from fp16doctor.diagnose.script_reading.training import (
    is_module_class,
    made_by,
    own_cast,
    stored_format,
)

_DEPTH = 6


def kept_half(script: Script, module: ast.expr) -> bool:
    """Whether ``module``, called as a function, holds its parameters in fp16."""
    if not made_by(script, module):
        return False
    if stored_format(script, module) == FLOAT16:
        return True
    owner = script.tree.class_of(script.tree.function(module))
    attribute = isinstance(module, ast.Attribute) and isinstance(module.value, ast.Name)
    return attribute and owner is not None and _half_class(script, owner, 0)


def _half_class(script: Script, owner: ast.ClassDef, depth: int) -> bool:
    """Whether every instance that the file makes of a module's class is kept in fp16."""
    if depth > _DEPTH or not is_module_class(script, owner):
        return False
    made = [c for c in script.calls if script.names.local_class(c) is owner]
    return bool(made) and all(_half_instance(script, call, depth) for call in made)


def _half_instance(script: Script, call: ast.Call, depth: int) -> bool:
    top: ast.AST = call
    cast = None
    for above in script.tree.ancestors(call):
        if not isinstance(above, (ast.Attribute, ast.Call)) or top in getattr(above, "args", ()):
            break
        top, cast = above, own_cast(script, above) or cast
    if cast is not None:
        return cast == FLOAT16
    statement = script.tree.parents.get(top)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return stored_format(script, statement.targets[0]) == FLOAT16
    home = script.tree.class_of(script.tree.function(call))
    return home is not None and _half_class(script, home, depth + 1)
