"""``import apex`` in a script, where apex is not installed and the script needs it.

A script that goes on without apex gets none: an import in a ``try`` whose handler does not raise,
or a question of ``importlib.util`` whether it is there. Must not know what amp does.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType

from fp16doctor.simulate.apex_amp import ApexAmp

_CAUGHT = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")


class ApexImport(MetaPathFinder, Loader):
    """Stands at the end of ``sys.meta_path``: an apex that is installed goes first."""

    def __init__(self) -> None:
        self.amp: ApexAmp | None = None  # once a script has imported it

    def start(self) -> None:
        """Be ready."""
        sys.meta_path.append(self)

    def stop(self) -> None:
        """Be gone; modules of ours are forgotten."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self.amp is not None:
            self.amp.leave()
            for name in ("apex", "apex.amp"):
                if getattr(sys.modules.get(name), "__loader__", None) is self:
                    del sys.modules[name]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find apex and apex.amp for a statement that cannot do without."""
        if fullname == "apex.amp" and self.amp is not None:
            return ModuleSpec(fullname, self)
        if fullname != "apex" or not _is_needed(sys._getframe(1)):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make an empty module."""
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Put in what there is of apex: ``amp``."""
        if self.amp is None:
            self.amp = ApexAmp()
        amp = self.amp
        if module.__name__ == "apex":
            module.__dict__["__path__"] = []
            module.__dict__["amp"] = amp
        else:
            public = [n for n in dir(amp) if not n.startswith("_")]
            vars(module).update((n, getattr(amp, n)) for n in public)


def _is_needed(frame: FrameType | None) -> bool:
    """Tell whether the statement that imports fails the script where nothing is found."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("importlib"):
        frame = frame.f_back
    if frame is None:
        return False
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals)))
    except (SyntaxError, ValueError):
        return False
    return _needs(tree.body, frame.f_lineno, needed=True)


def _needs(body: Sequence[ast.AST], line: int, *, needed: bool) -> bool:
    """Walk down to the import on ``line``."""
    for node in body:
        if not getattr(node, "lineno", line) <= line <= (getattr(node, "end_lineno", None) or line):
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return needed and _names_apex(node)
        if isinstance(node, ast.Try) and node.body[0].lineno <= line <= _end(node.body[-1]):
            return _needs(node.body, line, needed=needed and not any(map(_goes_on, node.handlers)))
        here = needed and not _suppresses(node)
        found = _needs([*ast.iter_child_nodes(node)], line, needed=here)
        if found:
            return True
    return False


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _names_apex(node: ast.Import | ast.ImportFrom) -> bool:
    names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return any(n.partition(".")[0] == "apex" for n in names)


def _suppresses(node: ast.AST) -> bool:
    """Whether a block goes by ``contextlib.suppress``."""
    calls = [i.context_expr for i in node.items] if isinstance(node, ast.With) else []
    return any("suppress" in ast.unparse(call) for call in calls)


def _goes_on(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches a failed import and does not raise."""
    kind = handler.type
    names = [] if kind is None else kind.elts if isinstance(kind, ast.Tuple) else [kind]
    caught = kind is None or any(getattr(n, "id", "") in _CAUGHT for n in names)
    return caught and not any(isinstance(n, ast.Raise) for b in handler.body for n in ast.walk(b))
