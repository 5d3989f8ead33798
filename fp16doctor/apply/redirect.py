"""Where a script's files lie while its writes go elsewhere.

What writes from compiled code (``safetensors``, a database), to another folder or over the network
is not reached. Must not know which calls write (``redirect_calls``).
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Redirect:
    """Files below ``folder`` that were written lie at the same place below ``store``."""

    def __init__(self, folder: str, store: str) -> None:
        self._folder, self._store = os.path.realpath(folder), os.path.realpath(store)
        self._gone: set[str] = set()  # the script took them away
        self._state = threading.local()

    @contextmanager
    def asked(self) -> Iterator[bool]:
        """Tell whether a call is the script's own: those that are made in here are not."""
        free = not getattr(self._state, "busy", False)
        self._state.busy = True
        try:
            yield free
        finally:
            self._state.busy = not free

    def written(self) -> tuple[str, ...]:
        """Return the files that went elsewhere, relative to the folder, in order."""
        found = (
            os.path.relpath(os.path.join(at, name), self._store)
            for at, _, names in os.walk(self._store)
            for name in names
        )
        return tuple(sorted(found))

    def to_read(self, path: Any) -> Any:
        """Return the copy if the script wrote one, else the path as it is."""
        full = self._inside(path)
        if full is None:
            return path
        copy = self._elsewhere(full)
        return copy if os.path.lexists(copy) or self._is_gone(full) else path

    def to_write(self, path: Any, *, keep: bool = False) -> Any:
        """Return the copy; where its content is ``kept``, made from the original first."""
        full = self._inside(path)
        if full is None:
            return path
        copy, folder = self._elsewhere(full), os.path.dirname(full)
        if os.path.isdir(folder) and not self._is_gone(folder):  # else it fails as it would have
            os.makedirs(os.path.dirname(copy), exist_ok=True)
        if keep and os.path.isfile(full) and not os.path.lexists(copy) and not self._is_gone(full):
            shutil.copy2(full, copy)
        self._gone.discard(full)
        return copy

    def exists(self, path: Any) -> bool:
        """Tell whether the script sees something there."""
        return os.path.lexists(self.to_read(path))

    def take_away(self, path: Any) -> bool:
        """Remove a path as far as the script sees it; False for a path outside the folder.

        Raises:
            FileNotFoundError: the script sees nothing there.
        """
        full = self._inside(path)
        if full is None:
            return False
        if not self.exists(path):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        copy = self._elsewhere(full)
        if os.path.isdir(copy) and not os.path.islink(copy):
            shutil.rmtree(copy)
        elif os.path.lexists(copy):
            os.unlink(copy)
        self._gone.add(full)
        return True

    def move(self, source: Any, target: Any) -> bool:
        """Move a path as far as the script sees it; False where both lie outside the folder."""
        inside, place, goal = self._inside(source), self.to_read(source), self.to_write(target)
        if inside is None and goal == target:
            return False
        if inside is not None and place == source and os.path.lexists(source):
            copy = shutil.copytree if os.path.isdir(source) else shutil.copy2
            copy(source, goal)  # the original stays where it is
        else:
            shutil.move(place, goal)
        if inside is not None and self.exists(source):
            self.take_away(source)
        return True

    def names_in(self, folder: Any, names: list[Any]) -> list[Any]:
        """Return a folder's names as the script sees them."""
        full = self._inside(os.path.join(os.fspath(folder), "x"))
        if full is None or any(isinstance(n, bytes) for n in names):
            return names
        here = os.path.dirname(full)
        copy = self._elsewhere(here)
        own = sorted(os.listdir(copy)) if os.path.isdir(copy) else []
        kept = [n for n in names if not self._is_gone(os.path.join(here, n)) and n not in own]
        return kept + own

    def _inside(self, path: Any) -> str | None:
        """Return the real path if it lies below the folder, None for every other."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        folder, name = os.path.split(os.fsdecode(path).rstrip(os.sep))
        if name in ("", os.curdir, os.pardir):
            return None
        full = os.path.join(os.path.realpath(folder or os.curdir), name)
        if full == self._store or full.startswith(self._store + os.sep):
            return None
        return full if full.startswith(self._folder + os.sep) else None

    def _elsewhere(self, full: str) -> str:
        return os.path.join(self._store, os.path.relpath(full, self._folder))

    def _is_gone(self, full: str) -> bool:
        return any(full == g or full.startswith(g + os.sep) for g in self._gone)
