"""Gives the kind of device in code to paste as the script itself spells it.

Must not know what the code does.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from fp16doctor.diagnose.script_reading.amp import autocasts
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.tree import argument
from fp16doctor.schema.prescription import Remedy

_FIXED = re.compile(r"torch\.autocast\('(?:cpu|cuda)'")


def with_own_device(remedy: Remedy, script: Script | None) -> Remedy:
    """Return a remedy whose text names the device by the script's own expression.

    Only one whose names the whole file sees, and only where all calls of autocast have that one.
    """
    if script is None or not _FIXED.search(remedy.change):
        return remedy
    given = {_spelled(script, argument(a.call, 0, "device_type")) for a in autocasts(script)}
    own = given.pop() if len(given) == 1 else ""
    if not own:
        return remedy
    return replace(remedy, change=_FIXED.sub(f"torch.autocast({own}", remedy.change))


def _spelled(script: Script, node: ast.expr | None) -> str:
    """``device.type``, "" of a literal and of what a function has to itself."""
    root = node
    while isinstance(root, ast.Attribute):
        root = root.value
    if node is None or not isinstance(root, ast.Name):
        return ""
    module = script.tree.module
    bound = script.names.bindings.get(module, {})
    stored = [n for n in script.stores.get(root.id, []) if script.tree.scope(n) is not module]
    return script.source(node) if root.id in bound and not stored else ""
