"""A parsed file as a tree one can climb: parents, enclosing functions, source text of a node.

Must not know what names mean (``names``) or what torch is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Scope = ast.Module | ast.ClassDef | Function
_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass
class Tree:
    """The nodes of one file."""

    module: ast.Module
    lines: list[str]  # without line ends
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    nodes: list[ast.AST] = field(default_factory=list)  # as ast.walk gives them
    calls: list[ast.Call] = field(default_factory=list)  # in the order of their position

    def __post_init__(self) -> None:
        for node in ast.walk(self.module):
            self.nodes.append(node)
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
        found = (n for n in self.nodes if isinstance(n, ast.Call))
        self.calls = sorted(found, key=position)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Parent, its parent, … the module."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def scope(self, node: ast.AST) -> Scope:
        """The innermost function, class or module that ``node`` lies in."""
        for above in self.ancestors(node):
            if isinstance(above, _SCOPES):
                return above
        return self.module

    def function(self, node: ast.AST) -> Function | ast.Module:
        """The innermost function that ``node`` lies in, else the module."""
        for above in self.ancestors(node):
            if isinstance(above, _FUNCTIONS):
                return above
        return self.module

    def class_of(self, function: ast.AST) -> ast.ClassDef | None:
        """The class that ``function`` is a method of."""
        above = self.parents.get(function)
        return above if isinstance(above, ast.ClassDef) else None

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that ``node`` is part of."""
        if isinstance(node, ast.stmt):
            return node
        return next(n for n in self.ancestors(node) if isinstance(n, ast.stmt))

    def qualified(self, node: ast.AST) -> str:
        """``Trainer.step`` for a node of that method, ``<module>`` at top level."""
        names = [getattr(n, "name", "<lambda>") for n in self.ancestors(node) if _named(n)]
        return ".".join(reversed(names)) or "<module>"

    def text(self, node: ast.AST) -> str:
        """The first line of ``node``'s statement, stripped."""
        number = getattr(node, "lineno", 1)
        return self.lines[number - 1].strip() if number <= len(self.lines) else ""

    def within(self, function: ast.AST) -> Iterator[ast.AST]:
        """Nodes of a function's own body; those of functions and classes inside it are left out."""
        waiting = list(ast.iter_child_nodes(function))
        while waiting:
            node = waiting.pop()
            yield node
            if not isinstance(node, _SCOPES):
                waiting.extend(ast.iter_child_nodes(node))


def _named(node: ast.AST) -> bool:
    return isinstance(node, _SCOPES) and not isinstance(node, ast.Module)


def position(node: ast.AST) -> tuple[int, int]:
    """Where the node ends: of two calls in one chain, the later one runs later."""
    return (getattr(node, "end_lineno", 0) or 0, getattr(node, "end_col_offset", 0) or 0)


def method(call: ast.AST) -> str:
    """``step`` for ``x.step(…)``; empty for anything else."""
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        return call.func.attr
    return ""


def receiver(call: ast.Call) -> ast.expr:
    """``x`` of ``x.step(…)``."""
    assert isinstance(call.func, ast.Attribute), "not a method call"
    return call.func.value


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The argument given as ``name=…``."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def argument(call: ast.Call, index: int, name: str) -> ast.expr | None:
    """The argument given by position or by name; None where it is left out or starred."""
    given = call.args[: index + 1]
    if len(given) > index and not any(isinstance(a, ast.Starred) for a in given):
        return call.args[index]
    return keyword(call, name)


def spelled(node: ast.AST) -> str:
    """The node as source, in one line."""
    return ast.unparse(node)


def mentions(node: ast.AST, attribute: str) -> bool:
    """Whether ``….attribute`` occurs in ``node``."""
    return any(isinstance(n, ast.Attribute) and n.attr == attribute for n in ast.walk(node))
