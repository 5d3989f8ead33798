"""Which of two places in a function certainly comes before the other.

Must not know what happens at the places.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fp16doctor.diagnose.script_reading.tree import Function, Tree, position

Loop = ast.For | ast.AsyncFor | ast.While
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_JUMPS = (ast.Return, ast.Continue, ast.Break, ast.Raise)


@dataclass(frozen=True)
class Arm:
    """One side of a condition."""

    condition: str  # as source, without a leading "not"
    holds: bool
    jumps: bool  # the side ends in return, continue, break or raise
    test: ast.expr | None = None  # None: a side of try


@dataclass(frozen=True)
class Place:
    """Where a node stands in its function."""

    function: Function | ast.Module
    at: tuple[int, int]
    arms: tuple[Arm, ...]  # outermost first
    loops: tuple[Loop, ...]  # innermost first

    @property
    def loop(self) -> Loop | None:
        """The innermost loop."""
        return self.loops[0] if self.loops else None

    def sides(self) -> set[tuple[str, bool]]:
        """The conditions that hold here."""
        return {(arm.condition, arm.holds) for arm in self.arms}


def place_of(tree: Tree, node: ast.AST) -> Place:
    """The place of ``node``, innermost function only."""
    arms: list[Arm] = []
    loops: list[Loop] = []
    below = node
    for above in tree.ancestors(node):
        if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            break
        if isinstance(above, ast.If) and below is not above.test:
            arms.append(_arm(above, below))
        elif isinstance(above, ast.IfExp) and below is not above.test:
            arms.append(_side(above.test, below is above.body, False))
        elif isinstance(above, _LOOPS) and below in above.body:
            loops.append(above)
        elif isinstance(above, ast.ExceptHandler):
            arms.append(Arm(f"except {id(above)}", True, _leaves(above.body)))
        below = above
    return Place(tree.function(node), position(node), tuple(reversed(arms)), tuple(loops))


def _arm(choice: ast.If, below: ast.AST) -> Arm:
    first = below in choice.body
    return _side(choice.test, first, _leaves(choice.body if first else choice.orelse))


def _side(test: ast.expr, holds: bool, jumps: bool) -> Arm:
    """``not x`` and ``x is None`` count as the other side of ``x``."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _side(test.operand, not holds, jumps)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        right = test.comparators[0]
        if isinstance(right, ast.Constant) and right.value is None:
            return Arm(
                ast.unparse(test.left), holds is isinstance(test.ops[0], ast.IsNot), jumps, test
            )
    return Arm(ast.unparse(test), holds, jumps, test)


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], _JUMPS)


def excluded(one: Place, other: Place) -> bool:
    """Whether the two stand on opposite sides of one condition."""
    there = other.sides()
    return any((condition, not holds) in there for condition, holds in one.sides())


def follows(first: Place, second: Place) -> bool:
    """Whether ``second`` can be reached after ``first`` without going round a loop."""
    if first.function is not second.function or first.at >= second.at:
        return False
    if excluded(first, second):
        return False
    there = second.sides()
    return not any(arm.jumps and (arm.condition, arm.holds) not in there for arm in first.arms)


def always_before(first: Place, second: Place) -> bool:
    """Whether ``first`` has run in the same turn of every loop whenever ``second`` runs."""
    same_turn = first.loops == second.loops[len(second.loops) - len(first.loops) :]
    return follows(first, second) and first.sides() <= second.sides() and same_turn
