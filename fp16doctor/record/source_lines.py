"""From a Python frame to the first line that belongs to the user.

Must not know what ran there.
"""

from __future__ import annotations

import linecache
import os
import site
import sys
import sysconfig
import textwrap
from types import CodeType, FrameType

import torch

from fp16doctor.record.notebook import cell_of
from fp16doctor.schema.location import SourceContext, SourceLine

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_STDLIB = os.path.realpath(sysconfig.get_paths()["stdlib"]) + os.sep

INTERNAL, LIBRARY, USER = 0, 1, 2
STRING = 3  # code given to ``exec``: whose it is depends on the frame

LineKey = tuple[CodeType, int]

_ENGINE = torch.autograd.graph._engine_run_backward.__code__
_CHECKPOINT = os.path.join(_TORCH, "utils", "checkpoint.py")


class SourceLines:
    """Finds and keeps source lines; ``root`` is the folder of the user's script."""

    def __init__(self, root: str, *, keep_text: bool = True) -> None:
        self._root = os.path.realpath(root) + os.sep
        self._keep_text = keep_text
        self._kinds: dict[str, int] = {}  # by file: hashing a code object is slow
        self._lines: dict[tuple[int, int], tuple[CodeType, SourceLine]] = {}
        self._paths: dict[str, str] = {}  # path as shown -> as compiled
        self._sites = tuple(os.path.realpath(p) + os.sep for p in _site_folders())

    def key(self, frame: FrameType | None) -> tuple[LineKey | None, LineKey | None]:
        """Return (innermost line outside torch, the user's own line where that is a library's)."""
        kinds = self._kinds
        source: LineKey | None = None
        while frame is not None:
            code = frame.f_code
            kind = kinds.get(code.co_filename)
            if kind is None:
                kind = self._learn(code.co_filename)
            if kind:
                here = (code, frame.f_lineno)
                if kind == USER or (kind == STRING and self._is_users_string(frame)):
                    return (here, None) if source is None else (source, here)
                if source is None and kind != STRING:
                    source = here
            frame = frame.f_back
        return source, None

    def within_backward(self, frame: FrameType | None) -> tuple[LineKey | None, bool]:
        """Look between an op and the autograd engine that runs it.

        Returns (innermost line outside torch, None where torch's own code runs the op; whether
        a checkpoint is computing its forward again).
        """
        source: LineKey | None = None
        while frame is not None and frame.f_code is not _ENGINE:
            path = frame.f_code.co_filename
            if path == _CHECKPOINT:
                return source, True
            kind = self._kinds.get(path)
            if kind is None:
                kind = self._learn(path)
            if kind == STRING and not self._is_users_string(frame):
                kind = INTERNAL
            if kind and source is None:
                source = (frame.f_code, frame.f_lineno)
            frame = frame.f_back
        return source, False

    def ran(self, path: str) -> bool:
        """Tell whether code of a file below the root was met on the way to an op."""
        return self._kinds.get(path) == USER and self.is_below_root(path)

    def is_users(self, key: LineKey) -> bool:
        """The line is the user's own, not a library's."""
        return self._kinds.get(key[0].co_filename) in (USER, STRING)

    def _is_users_string(self, frame: FrameType) -> bool:
        """Tell code that the user gave to ``exec`` from what a library generates.

        Methods that ``dataclasses`` and ``collections`` write have names with double underscores.
        """
        if frame.f_code.co_name.startswith("__"):
            return False
        file = frame.f_globals.get("__file__")
        return file is None or (isinstance(file, str) and self._kind(file) == USER)

    def is_below_root(self, path: str) -> bool:
        """The file is the user's own and lies below the folder of the script."""
        return self._kind(path) == USER and os.path.realpath(path).startswith(self._root)

    def _learn(self, path: str) -> int:
        kind = self._kinds[path] = self._kind(path)
        return kind

    def line(self, key: LineKey | None) -> SourceLine | None:
        """Return the line itself, path shortened, text read from the file."""
        if key is None:
            return None
        short = id(key[0]), key[1]
        if short not in self._lines:
            self._lines[short] = key[0], self._read(key)
        return self._lines[short][1]

    def _read(self, key: LineKey) -> SourceLine:
        code, number = key
        text = linecache.getline(code.co_filename, number).strip() if self._keep_text else None
        function = getattr(code, "co_qualname", code.co_name)
        return SourceLine(self.shorten(code.co_filename), number, function, text or None)

    def shorten(self, path: str) -> str:
        """Return ``path`` relative to the script's folder, or below site-packages, or as it is.

        A notebook's cell is named by its number.
        """
        full = os.path.realpath(path)
        roots = (root for root in (self._root, *self._sites) if full.startswith(root))
        root = next(roots, "")
        outside = full if os.pardir in path.split(os.sep) else path
        short = cell_of(path) or (full[len(root) :] if root else outside)
        self._paths[short] = path
        return short

    def around(self, line: SourceLine, reach: int = 2) -> SourceContext | None:
        """Return ``line`` with up to ``reach`` neighbours on either side.

        None where its text is not kept or cannot be read.
        """
        if line.text is None or not self._keep_text:
            return None
        text = linecache.getlines(self._paths.get(line.file, line.file))
        first, last = max(line.line - reach, 1), min(line.line + reach, len(text))
        if not first <= line.line <= last or text[line.line - 1].strip() != line.text:
            return None
        shown = textwrap.dedent("".join(text[first - 1 : last])).removesuffix("\n").split("\n")
        return SourceContext(line.file, line.line, first, tuple(t.rstrip() for t in shown))

    def _kind(self, path: str) -> int:
        if path == "<string>":
            return STRING
        if path.startswith("<"):  # "<frozen …>": no line a reader could open
            return USER if path in ("<stdin>",) or path.startswith("<ipython") else INTERNAL
        full = os.path.realpath(path)
        if full.startswith((_PACKAGE, _TORCH)) or path.startswith((_PACKAGE, _TORCH)):
            return INTERNAL
        if full.startswith(self._sites):
            return LIBRARY
        if full.startswith(_STDLIB):
            return INTERNAL
        return USER


def _site_folders() -> list[str]:
    paths = [*site.getsitepackages(), site.getusersitepackages()]
    paths += [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    return list(dict.fromkeys(paths))
