"""What binds each name of a file: imports, assignments, parameters, loops.

Must not know what the bound values are (``names``).
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from fp16doctor.diagnose.script_reading.tree import Function, Scope, Tree


@dataclass(frozen=True)
class Param:
    """A parameter of a function; its values are the arguments of the calls in the file."""

    function: Function
    name: str


@dataclass(frozen=True)
class Element:
    """What iterating over an expression gives."""

    source: ast.expr


@dataclass(frozen=True)
class Unknown:
    """A binding whose value the file does not show."""


@dataclass(frozen=True)
class Changed(Unknown):
    """What ``x += value`` leaves: not shown, but computed from ``value`` as well."""

    by: ast.expr


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Bound = ast.expr | Definition | Param | Element | Unknown
Value = ast.expr | Definition | Element | Unknown
Bindings = dict[Scope, dict[str, list[Bound]]]


def read_imports(tree: Tree) -> dict[str, list[str]]:
    """Local name -> dotted names, for every import of the file, in the order of the file."""
    found: dict[str, list[str]] = defaultdict(list)
    for node in tree.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                found[alias.asname or top].append(alias.name if alias.asname else top)
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            for alias in node.names:
                found[alias.asname or alias.name].append(f"{source}.{alias.name}")
    return {name: list(dict.fromkeys(sources)) for name, sources in found.items()}


def read_bindings(tree: Tree) -> Bindings:
    """Every binding of every name but imports, by the scope it is in."""
    found: Bindings = defaultdict(lambda: defaultdict(list))
    for node in tree.nodes:
        for name, value in _bound_by(node):
            found[_home(tree, node)][name].append(value)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for name in parameter_names(node):
                found[node][name].append(Param(node, name))
    return found


def _home(tree: Tree, node: ast.AST) -> Scope:
    return tree.scope(node)


def _bound_by(node: ast.AST) -> Iterator[tuple[str, Bound]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _targets(target, node.value)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield from _targets(node.target, node.value)
    elif isinstance(node, ast.AugAssign):
        if isinstance(node.target, ast.Name):
            yield node.target.id, Changed(node.value)
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield from _elements(node.target, node.iter)
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        for item in node.items:
            yield from _unknowns(item.optional_vars)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name, node
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        yield from ((name, Unknown()) for name in node.names)
    elif (isinstance(node, ast.ExceptHandler) and node.name) or (
        isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name
    ):
        yield node.name, Unknown()


def _targets(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, Bound]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, (ast.Tuple, ast.List)):
        if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
            for one, its in zip(target.elts, value.elts, strict=True):
                yield from _targets(one, its)
        elif isinstance(value, (ast.GeneratorExp, ast.ListComp)):
            for one in target.elts:
                yield from _targets(one, value.elt)
        else:
            yield from _unknowns(target)


def _elements(target: ast.expr, source: ast.expr) -> Iterator[tuple[str, Bound]]:
    called = _called(source)
    if isinstance(target, ast.Name):
        yield target.id, Element(source)
    elif isinstance(target, ast.Tuple) and isinstance(source, ast.Call) and called == "zip":
        if len(source.args) == len(target.elts):
            for one, its in zip(target.elts, source.args, strict=True):
                yield from _elements(one, its)
    elif isinstance(target, ast.Tuple) and isinstance(source, ast.Call) and called == "enumerate":
        if len(target.elts) == 2 and source.args:
            yield from _unknowns(target.elts[0])
            yield from _elements(target.elts[1], source.args[0])
    else:
        yield from _unknowns(target)


def _called(node: ast.expr) -> str:
    """``zip`` for ``zip(…)``."""
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return ast.unparse(node.func) if named and isinstance(node, ast.Call) else ""


def _unknowns(target: ast.AST | None) -> Iterator[tuple[str, Bound]]:
    for node in ast.walk(target) if target is not None else ():
        if isinstance(node, ast.Name):
            yield node.id, Unknown()


def alike(sources: list[str]) -> bool:
    """Whether all are one thing by its last name: those of ``torch.amp``, ``torch.cuda.amp``."""
    return len({source.rpartition(".")[2] for source in sources}) == 1


def parameter_names(function: Function) -> list[str]:
    """Every parameter, positional ones first and in order."""
    a = function.args
    listed = [*a.posonlyargs, *a.args, *a.kwonlyargs]
    return [p.arg for p in [*listed, *filter(None, (a.vararg, a.kwarg))]]
