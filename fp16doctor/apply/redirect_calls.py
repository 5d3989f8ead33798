"""Python's own ways to open, list and change files, sent elsewhere while a block runs.

Must not know where a file lies (``redirect``).
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from fp16doctor.apply.attributes import replaced
from fp16doctor.apply.redirect import Redirect

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_Call = Callable[..., Any]


@contextmanager
def redirected(to: Redirect) -> Iterator[None]:
    """Send writes below the folder elsewhere, and let reads see them, while the block runs."""
    with ExitStack() as stack:
        for owner, names, make in _MADE:
            for name in names:
                stack.enter_context(replaced(owner, name, lambda f, make=make: make(to, f)))  # type: ignore[misc]
        yield


def _opens(to: Redirect, original: _Call) -> _Call:
    def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        with to.asked() as own:
            if own and isinstance(mode, str):
                writes = bool(set(mode) & set("wax+"))
                file = to.to_write(file, keep="w" not in mode) if writes else to.to_read(file)
        return original(file, mode, *args, **kwargs)

    return open


def _opens_low(to: Redirect, original: _Call) -> _Call:
    def open(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        with to.asked() as own:
            if own and kwargs.get("dir_fd") is None:
                writes = bool(flags & _WRITE_FLAGS)
                keep = not flags & os.O_TRUNC
                path = to.to_write(path, keep=keep) if writes else to.to_read(path)
        return original(path, flags, *args, **kwargs)

    return open


def _saves(to: Redirect, original: _Call) -> _Call:
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        with to.asked() as own:
            f = to.to_write(f) if own else f
        return original(obj, f, *args, **kwargs)

    return save


def _reads(to: Redirect, original: _Call) -> _Call:
    def read(path: Any, *args: Any, **kwargs: Any) -> Any:
        with to.asked() as own:
            if own and kwargs.get("dir_fd") is None:
                path = to.to_read(path)
        return original(path, *args, **kwargs)

    return read


def _makes(to: Redirect, original: _Call) -> _Call:
    def make(path: Any, *args: Any, **kwargs: Any) -> Any:
        with to.asked() as own:
            if own and kwargs.get("dir_fd") is None:
                if to.exists(path) and not kwargs.get("exist_ok"):
                    raise FileExistsError(17, "File exists", os.fspath(path))
                path = to.to_write(path)
        return original(path, *args, **kwargs)

    return make


def _removes(to: Redirect, original: _Call) -> _Call:
    def remove(path: Any, *args: Any, **kwargs: Any) -> Any:
        with to.asked() as own:
            if own and kwargs.get("dir_fd") is None and to.take_away(path):
                return None
        return original(path, *args, **kwargs)

    return remove


def _moves(to: Redirect, original: _Call) -> _Call:
    def move(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        with to.asked() as own:
            if own and not kwargs and to.move(source, target):
                return None
        return original(source, target, *args, **kwargs)

    return move


def _lists(to: Redirect, original: _Call) -> _Call:
    def listdir(path: Any = ".") -> Any:
        with to.asked() as own:
            if own and not isinstance(path, int):
                shown = path if os.path.isdir(path) else to.to_read(path)
                return to.names_in(path, original(shown))
        return original(path)

    return listdir


_MADE: tuple[tuple[Any, tuple[str, ...], Callable[[Redirect, _Call], _Call]], ...] = (
    (builtins, ("open",), _opens),
    (io, ("open",), _opens),
    (os, ("open",), _opens_low),
    (torch, ("save",), _saves),
    (torch, ("load",), _reads),
    (os, ("stat", "lstat", "chdir", "access"), _reads),
    (os, ("mkdir", "makedirs"), _makes),
    (os, ("remove", "unlink", "rmdir"), _removes),
    (shutil, ("rmtree",), _removes),
    (os, ("rename", "replace"), _moves),
    (os, ("listdir",), _lists),
)
