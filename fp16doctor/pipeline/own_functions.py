"""Gives a function that is kept in fp32 as a diff: the decorator above its def, and the import.

Must not know why it is kept.
"""

from __future__ import annotations

import ast
import re

from fp16doctor.diagnose.script_reading.patch import Edit, diff, indent_of, insert_after
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.schema.prescription import Remedy

# As a change names a function of the script.
_NAMED = re.compile(r"\A# (?P<file>[^:\n]+):(?P<name>[\w.]+): put @fp16doctor\.keep_fp32 [^\n]*\Z")
_DECORATOR = "@fp16doctor.keep_fp32"


def with_decorator(remedy: Remedy, script: Script) -> str:
    """Return the diff, "" where the remedy is another or there is not one such function."""
    found = _NAMED.match(remedy.change.strip())
    if found is None or found["file"] != script.path:
        return ""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    named = [
        n
        for n in script.tree.nodes
        if isinstance(n, functions) and _qualified(script, n) == found["name"]
    ]
    start = _imports(script)
    if len(named) != 1 or start is None:
        return ""
    number = named[0].lineno  # of the def, decorators stand above
    line = indent_of(script.lines, number) + _DECORATOR
    known = script.names.imports.get("fp16doctor") == "fp16doctor"
    new = [] if known else [insert_after(script.lines, start, "import fp16doctor")]
    return diff(script.path, script.lines, [*new, Edit(number, number - 1, (line,))])


def _qualified(script: Script, function: ast.AST) -> str:
    outer = script.tree.qualified(function)
    name = getattr(function, "name", "")
    return name if outer == "<module>" else f"{outer}.{name}"


def _imports(script: Script) -> ast.stmt | None:
    """The last of the imports that the file begins with."""
    last = None
    for statement in script.tree.module.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            last = statement
        elif not isinstance(statement, ast.Expr):
            break
    return last
