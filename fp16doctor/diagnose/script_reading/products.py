"""A product taken apart into its factors, through names that stand for one expression.

Must not know any rule.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fp16doctor.diagnose.script_reading.reaching import assignment
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.tree import spelled


@dataclass(frozen=True)
class Factor:
    """One factor of a product."""

    node: ast.expr
    divides: bool


_DEPTH = 40  # a name bound once, to a product of itself, has no end


def factors(
    script: Script, node: ast.expr, divides: bool = False, depth: int = 0
) -> Iterator[Factor]:
    """``loss``, ``s`` and (dividing) ``s`` of ``loss * s * (1.0 / s)``; no factors of 1."""
    if isinstance(node, ast.Name) and depth < _DEPTH:
        made = assignment(script, node)
        if isinstance(made, ast.AugAssign) and isinstance(made.op, (ast.Mult, ast.Div)):
            yield from factors(script, made.target, divides, depth + 1)
            swapped = divides ^ isinstance(made.op, ast.Div)
            yield from factors(script, made.value, swapped, depth + 1)
            return
        if isinstance(made, ast.Assign) and isinstance(made.value, ast.Name):
            yield from factors(script, made.value, divides, depth + 1)
            return
        if isinstance(made, ast.Assign) and isinstance(made.value, ast.BinOp):
            node = made.value
    inner = script.single(node)
    product = isinstance(inner, ast.BinOp) and isinstance(inner.op, (ast.Mult, ast.Div))
    if product and isinstance(inner, ast.BinOp) and depth < _DEPTH:
        swapped = divides ^ isinstance(inner.op, ast.Div)
        yield from factors(script, inner.left, divides, depth + 1)
        yield from factors(script, inner.right, swapped, depth + 1)
    elif script.number(inner) != 1.0:
        yield Factor(node if isinstance(inner, ast.Constant) else inner, divides)


def uses(script: Script, node: ast.expr) -> int:
    """How often the file reads the name or attribute; 1 for a number written in place."""
    text = spelled(node)
    if isinstance(node, ast.Constant):
        return 1
    return sum(
        spelled(n) == text
        for n in script.tree.nodes
        if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Load)
    )
