"""Where in a script its model is complete and training has not begun: its optimizer's line.

Must not know what is put there.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.training import optimizers, trained_model
from fp16doctor.diagnose.script_reading.tree import spelled

_WRAPPED = re.compile(r"DistributedDataParallel|\bDDP\(|FSDP|fully_shard|\.prepare\(|deepspeed")


@dataclass(frozen=True, slots=True)
class Start:
    """The statement in front of which code may be put, and what the model is called there."""

    statement: ast.stmt
    model: str


def training_start(script: Script, model: str = "") -> Start | None:
    """Return the place, None where the text shows none.

    ``model``: its name where it is known; of several models that are trained it is the one.
    """
    if _WRAPPED.search(script.text) or script.names.imports.get("torch") != "torch":
        return None
    found: dict[str, ast.stmt] = {}
    for call, _ in optimizers(script):
        trained = trained_model(script, call)
        if not isinstance(trained, (ast.Name, ast.Attribute)) or script.place(call).loops:
            return None
        found.setdefault(spelled(trained), script.tree.statement(call))
    name = model if model in found else next(iter(found), "")
    if not name or (len(found) > 1 and not model):
        return None
    return Start(found[name], name)


def binds_anew(script: Script, code: str) -> bool:
    """Tell whether code binds a name that the script has already."""
    tree = ast.parse(code)
    names = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    defined = (ast.FunctionDef, ast.ClassDef)
    made = {n.name for n in tree.body if isinstance(n, defined)}
    named = (n for n in script.tree.nodes if isinstance(n, defined))
    own = {n.name for n in named if script.tree.class_of(n) is None}
    own |= {n.arg for n in script.tree.nodes if isinstance(n, ast.arg)} if made else set()
    return bool((names | made) & (set(script.stores) | set(script.names.imports) | own))
