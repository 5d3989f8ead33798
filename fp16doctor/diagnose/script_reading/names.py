"""What a name stands for: imports, assignments, parameters, attributes of ``self``.

Only what the file itself shows: a name with an unknown binding has an unknown value.
Must not know any rule.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

from fp16doctor.diagnose.script_reading.bindings import (
    Bound,
    Param,
    Unknown,
    Value,
    alike,
    read_bindings,
    read_imports,
)
from fp16doctor.diagnose.script_reading.tree import Scope, Tree

_DEPTH = 12  # longer chains of names are given up as unknown
_STEPS = 200  # and so are names with more bindings, over the whole chain, than this


class Names:
    """Answers what names and attributes of one file stand for."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        imported = read_imports(tree)
        # Imported from several places, as for old and new versions of a library.
        self.several = {name for name, sources in imported.items() if len(sources) > 1}
        self.imports = {name: s[0] for name, s in imported.items() if alike(s)}
        self.bindings = read_bindings(tree)
        self._attributes: dict[ast.ClassDef, dict[str, list[ast.expr]]] = {}
        self._callers: dict[ast.AST, list[ast.Call]] | None = None
        self._values_of: dict[ast.expr, list[Value]] = {}
        self._owners: dict[ast.expr, ast.ClassDef | None] = {}
        self._steps_left = 0

    def dotted(self, node: ast.AST) -> str:
        """``torch.nn.functional.relu`` for ``F.relu``; empty where the root is no import."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.imports:
            return ""
        home = self._home(node)
        if home is not None and not all(map(_is_none, self.bindings[home][node.id])):
            return ""  # the name is bound to something else as well; None cannot be called
        return ".".join([self.imports[node.id], *reversed(parts)])

    def _home(self, node: ast.Name) -> Scope | None:
        """The scope whose binding ``node`` reads; None where an import binds it, or nothing."""
        for above in [*self.tree.ancestors(node)]:
            if isinstance(above, ast.ClassDef) and above is not self.tree.scope(node):
                continue
            if above in self.bindings and node.id in self.bindings[above]:
                return above
        return None

    def bound(self, node: ast.Name) -> list[Bound]:
        """All bindings of the name as read at ``node``."""
        home = self._home(node)
        return [] if home is None else self.bindings[home][node.id]

    def values(self, node: ast.expr) -> list[Value]:
        """Everything ``node`` may stand for; with Unknown where the file does not show all."""
        if node not in self._values_of:
            self._values_of[node] = [Unknown()]  # what a question that comes back to it is told
            outer, self._steps_left = self._steps_left, _STEPS
            self._values_of[node] = list(dict.fromkeys(self._values(node, frozenset(), 0)))
            self._steps_left = outer
        return self._values_of[node]

    def known(self, node: ast.expr) -> list[ast.expr]:
        """Expressions ``node`` may stand for; empty where one is unknown."""
        found = self.values(node)
        if any(not isinstance(v, ast.expr) for v in found):
            return []
        return [v for v in found if isinstance(v, ast.expr)]

    def _values(self, node: ast.expr, seen: frozenset[ast.AST], depth: int) -> Iterator[Value]:
        self._steps_left -= 1
        if depth > _DEPTH or self._steps_left < 0:
            yield Unknown()
        elif node in seen:
            return  # a name bound to itself adds nothing
        elif isinstance(node, ast.IfExp):
            for side in (node.body, node.orelse):
                yield from self._values(side, seen | {node}, depth + 1)
        elif isinstance(node, ast.NamedExpr):
            yield from self._values(node.value, seen | {node}, depth + 1)
        elif isinstance(node, ast.Name):
            yield from self._follow(self.bound(node), node, seen, depth)
        elif isinstance(node, ast.Attribute) and not self.dotted(node):
            stored = self.attribute(node)
            yield from self._follow(stored, node, seen, depth)
        else:
            yield node

    def _follow(
        self, bound: Iterable[Bound], node: ast.expr, seen: frozenset[ast.AST], depth: int
    ) -> Iterator[Value]:
        bound = list(bound)
        if not bound:
            yield node if self.dotted(node) or isinstance(node, ast.Attribute) else Unknown()
        for value in bound:
            if isinstance(value, Param):
                yield from self._argument(value, seen | {node}, depth + 1)
            elif isinstance(value, ast.expr):
                yield from self._values(value, seen | {node}, depth + 1)
            else:
                yield value

    def _argument(self, param: Param, seen: frozenset[ast.AST], depth: int) -> Iterator[Value]:
        given = self.arguments(param)
        if given is None or depth > _DEPTH:
            yield Unknown()
            return
        for value in given:
            yield from self._values(value, seen, depth)

    def arguments(self, param: Param) -> list[ast.expr] | None:
        """What the calls of the file give for a parameter; None where one of them is not plain."""
        function, name = param.function, param.name
        if isinstance(function, ast.Lambda):
            return None
        calls = self.callers().get(function, [])
        found = [_given(call, function, name, self.tree) for call in calls]
        return None if not calls or None in found else [v for v in found if v is not None]

    def attribute(self, node: ast.Attribute) -> list[ast.expr]:
        """What is assigned to ``self.x`` in the class, also where the object has another name."""
        owner = self.owner(node.value)
        return [] if owner is None else self.attributes(owner).get(node.attr, [])

    def owner(self, node: ast.expr) -> ast.ClassDef | None:
        """The class of the file that ``node`` is an instance of."""
        if node not in self._owners:
            self._owners[node] = None
            self._owners[node] = self._find_owner(node)
        return self._owners[node]

    def _find_owner(self, node: ast.expr) -> ast.ClassDef | None:
        if isinstance(node, ast.Name):
            function = self.tree.function(node)
            home = self.tree.class_of(function)
            if home is not None and not isinstance(function, (ast.Module, ast.Lambda)):
                first = [*function.args.posonlyargs, *function.args.args][:1]
                if first and first[0].arg == node.id:
                    return home
        made = self.known(node)
        classes = {self.local_class(v) for v in made}
        return classes.pop() if len(classes) == 1 else None

    def local_class(self, value: ast.AST) -> ast.ClassDef | None:
        """The class of the file that the call ``value`` makes an instance of."""
        if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
            return None
        bound = self.bound(value.func)
        return bound[0] if len(bound) == 1 and isinstance(bound[0], ast.ClassDef) else None

    def attributes(self, owner: ast.ClassDef) -> dict[str, list[ast.expr]]:
        """Attribute -> expressions assigned to it through ``self``."""
        if owner not in self._attributes:
            self._attributes[owner] = self._read_attributes(owner)
        return self._attributes[owner]

    def _read_attributes(self, owner: ast.ClassDef) -> dict[str, list[ast.expr]]:
        found: dict[str, list[ast.expr]] = defaultdict(list)
        for node in ast.walk(owner):
            if isinstance(node, ast.Call):
                found.update({k: [*found[k], v] for k, v in _registered(node)})
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for one, value in _attribute_targets(target, node.value):
                    if isinstance(one.value, ast.Name) and one.value.id == "self":
                        found[one.attr].append(value)
        return found

    def callers(self) -> dict[ast.AST, list[ast.Call]]:
        """Function of the file -> the calls that run it, as far as the file shows."""
        if self._callers is None:
            self._callers = defaultdict(list)
            for call in self.tree.calls:
                target = self.called(call)
                if target is not None:
                    self._callers[target].append(call)
        return self._callers

    def called(self, call: ast.Call) -> ast.AST | None:
        """The function of the file that ``call`` runs, as far as the file shows."""
        if isinstance(call.func, ast.Name):
            bound = self.bound(call.func)
            if len(bound) == 1 and isinstance(bound[0], ast.ClassDef):
                return method_named(bound[0], "__init__")
            if len(bound) == 1 and isinstance(bound[0], (ast.FunctionDef, ast.AsyncFunctionDef)):
                return bound[0]
        elif isinstance(call.func, ast.Attribute):
            owner = self._plain_owner(call.func.value)
            if owner is not None:
                return method_named(owner, call.func.attr)
        instance = self._plain_owner(call.func)
        return None if instance is None else method_named(instance, "forward")

    def _plain_owner(self, node: ast.expr) -> ast.ClassDef | None:
        """As ``owner``, without following parameters: callers are being looked for."""
        if isinstance(node, ast.Attribute):
            home = self._plain_owner(node.value)
            made = [] if home is None else self.attributes(home).get(node.attr, [])
        elif isinstance(node, ast.Name):
            function = self.tree.function(node)
            home = self.tree.class_of(function)
            if home is not None and node.id == "self":
                return home
            made = [v for v in self.bound(node) if isinstance(v, ast.expr)]
        else:
            return None
        classes = {self.local_class(_peeled(v)) for v in made}
        return classes.pop() if len(classes) == 1 else None


def _is_none(value: Bound) -> bool:
    """``amp = None``, where an import has failed."""
    return isinstance(value, ast.Constant) and value.value is None


def _peeled(node: ast.expr) -> ast.expr:
    """``Net()`` of ``Net().to(device).half()``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def method_named(owner: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """The method of that name in the class's own body."""
    found = [n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == name]
    return found[0] if found else None


def _registered(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """``("x", value)`` of ``self.register_buffer("x", value)``."""
    named = isinstance(call.func, ast.Attribute) and call.func.attr == "register_buffer"
    if named and len(call.args) > 1 and isinstance(call.args[0], ast.Constant):
        yield str(call.args[0].value), call.args[1]


def _attribute_targets(
    target: ast.expr, value: ast.expr
) -> Iterator[tuple[ast.Attribute, ast.expr]]:
    if isinstance(target, ast.Attribute):
        yield target, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        if len(target.elts) != len(value.elts):
            return
        for one, its in zip(target.elts, value.elts, strict=True):
            yield from _attribute_targets(one, its)


def _given(
    call: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str, tree: Tree
) -> ast.expr | None:
    """The argument of ``call`` for the parameter ``name``, or its default."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(
        k.arg is None for k in call.keywords
    ):
        return None
    positional = [p.arg for p in [*function.args.posonlyargs, *function.args.args]]
    bound = tree.class_of(function) is not None and not function.decorator_list
    at = positional.index(name) - bound if name in positional else -1
    if 0 <= at < len(call.args):
        return call.args[at]
    by_name = next((k.value for k in call.keywords if k.arg == name), None)
    return by_name if by_name is not None else _default(function, name)


def _default(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> ast.expr | None:
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    with_default = positional[len(positional) - len(a.defaults) :]
    pairs = [
        *zip(with_default, a.defaults, strict=True),
        *zip(a.kwonlyargs, a.kw_defaults, strict=True),
    ]
    return next((value for p, value in pairs if p.arg == name), None)
