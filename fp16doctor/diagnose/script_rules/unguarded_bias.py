"""A bias that may be None is written to.

What it checks:
    In a function that tells layers by `isinstance(m, nn.Conv2d)` (or Linear, …): `m.bias.data` or
    `nn.init.…(m.bias)` under no look at whether there is a bias, in a file that makes a layer of
    such a class with `bias=False`.

Why it matters:
    A layer made with `bias=False` has `bias = None`: the line raises AttributeError.

Example:
    if isinstance(m, nn.Conv2d):
        m.bias.data.zero_()

Remedy:
    `if m.bias is not None:` before it.

References:
    PyTorch documentation, torch.nn.Linear
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.patch import Edit, replace_statement
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.tree import keyword, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule

_LAYERS = {
    f"torch.nn.{name}"
    for name in ("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d")
}


@script_rule(code="FD728", name="unguarded-bias")
def unguarded_bias(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per bias that is written to and may be None."""
    bare = _made_without_bias(script)
    for node in script.tree.nodes if bare else ():
        if not isinstance(node, ast.Attribute) or node.attr != "bias":
            continue
        if not _written(script, node) or _guarded(script, node):
            continue
        if _may_be(script, node) & bare and not _has_one(script, node.value):
            yield _suspicion(script, node)


def _has_one(script: Script, owner: ast.expr) -> bool:
    """Whether nothing that the file shows the attribute ``owner`` to be is made without a bias.

    A name that runs over all modules may be any layer of the file.
    """
    if not isinstance(owner, ast.Attribute):
        return False
    made = [v for v in script.names.values(owner) if isinstance(v, ast.Call)]
    return all(script.truth(keyword(c, "bias"), True) is not False for c in made)


def _made_without_bias(script: Script) -> set[str]:
    found = set()
    for call, name in script.dotted_calls:
        if name in _LAYERS and script.truth(keyword(call, "bias"), True) is False:
            found.add(name)
    return found


def _written(script: Script, node: ast.Attribute) -> bool:
    """``bias.data…`` and ``nn.init.zeros_(bias)``: both need a tensor."""
    above = script.tree.parents.get(node)
    if isinstance(above, ast.Attribute):
        return above.attr == "data"
    return script.name(above).startswith("torch.nn.init.") if above is not None else False


def _may_be(script: Script, node: ast.Attribute) -> set[str]:
    """The classes that an isinstance around ``node`` leaves for its owner."""
    owner = spelled(node.value)
    for arm in script.place(node).arms:
        test = arm.test
        if not arm.holds or not isinstance(test, ast.Call) or len(test.args) != 2:
            continue
        if spelled(test.func) == "isinstance" and spelled(test.args[0]) == owner:
            kinds = test.args[1]
            listed = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
            return {script.names.dotted(k) for k in listed}
    return set()


def _guarded(script: Script, node: ast.Attribute) -> bool:
    text = spelled(node)
    conditions = [arm.test for arm in script.place(node).arms if arm.test is not None]
    guarded = any(text in spelled(c) or "bias" in spelled(c) for c in conditions)
    return guarded or "hasattr" in " ".join(map(spelled, conditions))


def _suspicion(script: Script, node: ast.Attribute) -> Suspicion:
    text = spelled(node)
    return Suspicion(
        node=node,
        what=f"`{text}` is written to, and the file makes such a layer with bias=False",
        reason="The bias of that layer is None: the line raises AttributeError when it meets it.",
        advice=f"guard it with `if {text} is not None:`",
        edits=_edits(script, node, text),
    )


def _edits(script: Script, node: ast.Attribute, text: str) -> list[Edit]:
    statement = script.tree.statement(node)
    if statement.lineno != statement.end_lineno:
        return []
    line = script.lines[statement.lineno - 1].strip()
    return [replace_statement(script.lines, statement, f"if {text} is not None:", f"    {line}")]
