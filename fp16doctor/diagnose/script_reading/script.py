"""One script as rules see it: the tree, names, places, and the facts about mixed precision.

Must not know any rule.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from functools import cached_property

from fp16doctor.diagnose.script_reading.bindings import Changed, Element
from fp16doctor.diagnose.script_reading.names import Names
from fp16doctor.diagnose.script_reading.order import Place, place_of
from fp16doctor.diagnose.script_reading.tree import Tree


class Script:
    """A file, parsed.

    Raises:
        SyntaxError: the text is no Python; ValueError: it holds a NUL byte.
    """

    def __init__(self, text: str, path: str) -> None:
        self.path = path
        self.text = text
        # Lines end where Python's parser ends them; splitlines would split at a form feed too.
        self.lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser's, on escapes of the file that is read
            self.tree = Tree(ast.parse(text), self.lines)
        self.names = Names(self.tree)
        self._places: dict[ast.AST, Place] = {}
        self._numbers: dict[ast.expr, float | None] = {}

    def place(self, node: ast.AST) -> Place:
        """Where ``node`` stands in its function."""
        if node not in self._places:
            self._places[node] = place_of(self.tree, node)
        return self._places[node]

    @cached_property
    def calls(self) -> list[ast.Call]:
        """All calls, in the order of their position."""
        return self.tree.calls

    @cached_property
    def by_method(self) -> dict[str, list[ast.Call]]:
        """Method name -> calls of it."""
        found: dict[str, list[ast.Call]] = {}
        for call in self.calls:
            if isinstance(call.func, ast.Attribute):
                found.setdefault(call.func.attr, []).append(call)
        return found

    def methods(self, *names: str) -> list[ast.Call]:
        """Calls of methods of these names."""
        found = [c for name in names for c in self.by_method.get(name, [])]
        return sorted(found, key=lambda c: self.place(c).at)

    @cached_property
    def stores(self) -> dict[str, list[ast.Name]]:
        """Name -> the places that bind it."""
        found: dict[str, list[ast.Name]] = {}
        for node in self.tree.nodes:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.setdefault(node.id, []).append(node)
        return found

    @cached_property
    def dotted_calls(self) -> list[tuple[ast.Call, str]]:
        """Calls of imported names, with the whole name."""
        named = ((call, self.names.dotted(call.func)) for call in self.calls)
        return [(call, name) for call, name in named if name]

    def source(self, node: ast.AST) -> str:
        """The node as the script spells it, in one line."""
        text = ast.get_source_segment(self.text, node) or ast.unparse(node)
        if "\n" in text and "#" in text:  # a comment would swallow what follows it
            text = ast.unparse(node)
        return " ".join(text.split())

    def name(self, call: ast.AST) -> str:
        """The whole name of an imported function that is called; empty for anything else."""
        return self.names.dotted(call.func) if isinstance(call, ast.Call) else ""

    def closure(self, node: ast.AST) -> Iterator[ast.AST]:
        """Nodes that ``node`` is computed from: its own, and those of the names of its function."""
        waiting: list[ast.AST] = [node]
        seen: set[ast.AST] = set()
        while waiting:
            top = waiting.pop()
            for part in ast.walk(top):
                if part in seen:
                    continue
                seen.add(part)
                yield part
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                    bound = self.names.bound(part)
                    waiting += [b for b in bound if isinstance(b, ast.expr)]
                    waiting += [b.source for b in bound if isinstance(b, Element)]
                    waiting += [b.by for b in bound if isinstance(b, Changed)]

    def single(self, node: ast.expr) -> ast.expr:
        """The expression of a name that has one binding in the file's view, else ``node``."""
        for _ in range(8):
            if not isinstance(node, ast.Name):
                break
            bound = self.names.bound(node)
            if len(bound) != 1 or not isinstance(bound[0], ast.expr):
                break
            node = bound[0]
        return node

    def number(self, node: ast.expr | None) -> float | None:
        """The number that ``node`` certainly is."""
        if node is None:
            return None
        if node not in self._numbers:
            self._numbers[node] = None  # what a name bound to a product of itself is told
            found = {self._literal(v) for v in self.names.known(node)}
            self._numbers[node] = found.pop() if len(found) == 1 else None
        return self._numbers[node]

    def _literal(self, node: ast.expr) -> float | None:
        if isinstance(node, ast.Constant):
            value = node.value
            plain = isinstance(value, (int, float)) and not isinstance(value, bool)
            return float(value) if plain and isinstance(value, (int, float)) else None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.number(node.operand)
            return None if inner is None else -inner
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "float"
        ):
            return self._float_call(node)
        return None

    def _arithmetic(self, node: ast.BinOp) -> float | None:
        left, right = self.number(node.left), self.number(node.right)
        if left is None or right is None:
            return None
        try:
            if isinstance(node.op, ast.Mult):
                return left * right
            if isinstance(node.op, ast.Div):
                return left / right
            if isinstance(node.op, ast.Pow):
                return float(left**right)
        except (ArithmeticError, TypeError):
            return None
        return None

    def _float_call(self, node: ast.Call) -> float | None:
        """``float("-inf")`` and ``float(1)``."""
        given = node.args[0] if len(node.args) == 1 else None
        try:
            return float(str(given.value)) if isinstance(given, ast.Constant) else None
        except ValueError:
            return None

    def truth(self, node: ast.expr | None, default: bool) -> bool | None:
        """What a flag is; ``default`` where it is left out, None where it is not shown."""
        if node is None:
            return default
        found = {v.value if isinstance(v, ast.Constant) else None for v in self.names.known(node)}
        only = found.pop() if len(found) == 1 else None
        return only if isinstance(only, bool) else None

    def word(self, node: ast.expr | None) -> str | None:
        """The string that ``node`` certainly is."""
        found = self.names.known(node) if node is not None else []
        words = {v.value if isinstance(v, ast.Constant) else None for v in found}
        only = words.pop() if len(words) == 1 else None
        return only if isinstance(only, str) else None
