"""Weights are initialised by dividing them by their own deviation.

What it checks:
    Outside forward: `w.mul_(1 / std)`, `w.div_(std)` or `w /= std` of a weight, where std is
    computed by `.std(…)` of the same weight, and the weight is not multiplied again afterwards.

Why it matters:
    It gives every weight the variance 1 and undoes the initialisation before it. A layer then
    multiplies the size of its input by the root of its fan-in (of half of it before a ReLU): with
    256 inputs, 16 times a layer, and fp16 ends at 65504.

Example:
    nn.init.kaiming_normal_(m.weight)
    m.weight.data.mul_(1.0 / m.weight.data.std(1, keepdim=True))

Remedy:
    Leave the division out: `kaiming_normal_` has the variance 2 / fan-in already.

References:
    He et al., "Delving Deep into Rectifiers", arXiv 1502.01852, section 2.2
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.beside_run import values_grew
from fp16doctor.diagnose.script_reading.patch import Edit, remove
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.tree import method, receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule

_DEPTH = 8  # names that stand for names
_SAME = {"clamp", "clamp_min", "detach", "item", "view", "reshape", "unsqueeze", "float"}


@script_rule(code="FD729", name="row-normalised-weights", stands=values_grew)
def row_normalised_weights(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per weight that is divided by its own deviation."""
    if "std(" not in script.text:
        return
    for node in script.tree.nodes:
        found = _division(node)
        if found is None or script.tree.qualified(node).endswith("forward"):
            continue
        weight, divisor = found
        if _own_deviation(script, weight, divisor) and not _scaled_again(script, node, weight):
            yield _suspicion(script, node, weight)


def _division(node: ast.AST) -> tuple[str, ast.expr] | None:
    """(weight, divisor) of ``m.weight.data.mul_(1 / std)``, ``.div_(std)`` and ``/= std``."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
        return _named(node.target, node.value)
    if not isinstance(node, ast.Call) or len(node.args) != 1:
        return None
    value = node.args[0]
    if method(node) == "div_":
        return _named(receiver(node), value)
    inverse = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div)
    if method(node) == "mul_" and inverse and isinstance(value, ast.BinOp):
        one = value.left
        if isinstance(one, ast.Constant) and one.value == 1:
            return _named(receiver(node), value.right)
    return None


def _named(target: ast.expr, divisor: ast.expr) -> tuple[str, ast.expr] | None:
    """``m.weight`` of ``m.weight.data``."""
    text = spelled(target).removesuffix(".data")
    return (text, divisor) if text.rpartition(".")[2].endswith("weight") else None


def _own_deviation(script: Script, weight: str, divisor: ast.expr) -> bool:
    """Whether the divisor is the deviation itself: a ratio of it to a target sets that target."""
    node = divisor
    for _ in range(_DEPTH):
        node = script.single(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):  # an eps
            node = node.left if script.number(node.right) is not None else node.right
        elif method(node) in _SAME and isinstance(node, ast.Call):
            node = receiver(node)
        else:
            break
    if method(node) != "std" or not isinstance(node, ast.Call):
        return False
    of = script.closure(receiver(node))
    return any(spelled(n) == weight for n in of if isinstance(n, ast.Attribute))


def _scaled_again(script: Script, node: ast.AST, weight: str) -> bool:
    """Another product of the same weight behind it, or a second factor in the same statement."""
    here = script.place(node)
    for other in script.tree.nodes:
        call = method(other) in ("mul_", "div_", "copy_") and isinstance(other, ast.Call)
        target = receiver(other) if call else getattr(other, "target", None)  # type: ignore[arg-type]
        if not (call or isinstance(other, ast.AugAssign)) or other is node or target is None:
            continue
        same = spelled(target).startswith(weight)
        if (
            same
            and script.place(other).function is here.function
            and script.place(other).at > here.at
        ):
            return True
    return False


def _suspicion(script: Script, node: ast.AST, weight: str) -> Suspicion:
    assert isinstance(node, (ast.expr, ast.stmt)), "calls and statements have lines"
    return Suspicion(
        node=node,
        what=f"`{weight}` is divided by its own standard deviation",
        reason=(
            "Every weight then has the variance 1, and a layer multiplies the size of its input by "
            "the root of its fan-in, half of it before a ReLU."
        ),
        advice="leave the division out: the initialisation has set the variance already",
        edits=_edits(script, node),
    )


def _edits(script: Script, node: ast.AST) -> list[Edit]:
    statement = script.tree.statement(node)
    plain = isinstance(statement, (ast.Expr, ast.AugAssign))
    beside = getattr(script.tree.parents.get(statement), "body", [])
    return [remove(script.lines, statement)] if plain and len(beside) > 1 else []
