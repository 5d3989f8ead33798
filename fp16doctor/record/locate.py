"""Finds the code a command line names, as Python's own start-up would: a file, a folder, a module.

Must not know how the code is run or watched (``record.script``).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any

from fp16doctor.errors import Fp16DoctorError, UsageError


class ScriptSyntaxError(Fp16DoctorError):
    """The script does not compile; ``__cause__`` is Python's own SyntaxError."""

    exit_code = 1  # what Python exits with for such a script


@dataclass(frozen=True, slots=True)
class Located:
    """Compiled code and everything its ``__main__`` module is told about itself."""

    code: CodeType
    file: str  # value of __file__
    argv0: str  # value of sys.argv[0]
    path0: str  # value of sys.path[0]
    folder: str  # folder that reported paths are relative to, symlinks resolved
    loader: Any  # value of __loader__
    package: str | None  # value of __package__
    spec: ModuleSpec | None = None  # value of __spec__; None for a plain file
    cached: str | None = None  # value of __cached__
    source: str | bytes | None = None  # text the code was compiled from, where there is one


def locate_file(name: str) -> Located:
    """Find and compile a script given by path; a folder is run through its ``__main__.py``.

    Raises:
        UsageError: there is no such file, it cannot be read, or the folder has no ``__main__.py``.
        ScriptSyntaxError: it does not compile.
    """
    if os.path.isdir(name):
        return _locate_folder(name)
    file = _absolute(name)
    source = _read(name)
    return Located(
        code=_compile(source, file, name),
        file=file,
        argv0=name,
        path0=os.path.dirname(os.path.realpath(file)),
        folder=os.path.dirname(os.path.realpath(file)),
        loader=SourceFileLoader("__main__", file),
        package=None,
        source=source,
    )


def locate_module(name: str) -> Located:
    """Find and compile ``-m name``; imports the packages above it, which is the user's code.

    Raises:
        UsageError: there is no such module, or it is a package without ``__main__``.
        ScriptSyntaxError: it does not compile.
        BaseException: whatever the packages above it raise while they are imported.
    """
    spec = None if name.startswith(".") else _find_spec(name)
    if spec is None:
        raise _no_such_module(name)
    if spec.submodule_search_locations is not None:
        spec = _find_spec(f"{name}.__main__")
    if spec is None:
        raise _no_main_module(name)
    located = _from_spec(spec, name)
    top = located.folder
    for _ in range(spec.name.count(".")):
        top = os.path.dirname(top)
    return replace(located, path0=os.getcwd(), folder=top)


def _locate_folder(name: str) -> Located:
    folder = os.path.abspath(name)
    spec = PathFinder.find_spec("__main__", [folder])
    if spec is None or spec.origin is None:
        raise UsageError(
            f"{name!r} is a folder and has no __main__.py; name the script inside it to run",
            "is-a-directory",
        )
    located = _from_spec(spec, name)
    return replace(located, argv0=name, path0=folder)


def _from_spec(spec: ModuleSpec, name: str) -> Located:
    loader: Any = spec.loader
    try:
        code = loader.get_code(spec.name)
        source = loader.get_source(spec.name)
    except (SyntaxError, ValueError) as error:
        raise _does_not_compile(name, error) from error
    except (AttributeError, ImportError):
        code = None
    if code is None or spec.origin is None:
        raise _not_runnable(name)
    folder = os.path.dirname(os.path.realpath(spec.origin))
    return Located(
        code=code,
        file=spec.origin,
        argv0=spec.origin,
        path0=folder,
        folder=folder,
        loader=loader,
        package=spec.parent,
        spec=spec,
        cached=spec.cached,
        source=source,
    )


def _find_spec(name: str) -> ModuleSpec | None:
    """As ``runpy`` does: import the packages above, then ask for the module itself."""
    parent = name.rpartition(".")[0]
    if parent and not _import_package(parent):
        return None
    try:
        return importlib.util.find_spec(name)
    except (ImportError, AttributeError, TypeError, ValueError):  # the parent is no package
        return None


def _import_package(package: str) -> bool:
    """Import it; only its *own* absence is False, an ImportError from inside it passes."""
    try:
        __import__(package)
    except ImportError as error:
        missing = error.name
        if missing is None or (missing != package and not package.startswith(f"{missing}.")):
            raise
        return False
    return True


def _absolute(name: str) -> str:
    """The path as Python puts it into ``__file__``: made absolute, but not normalised."""
    return name if os.path.isabs(name) else os.path.join(os.getcwd(), name)


def _read(name: str) -> bytes:
    try:
        with open(name, "rb") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"there is no script {name!r} (looked in {os.getcwd()!r}); check the path, or run a"
            " module with -m",
            "no-such-script",
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"the script {name!r} cannot be read: {reason}; check its permissions",
            "unreadable-script",
        ) from error


def _compile(source: bytes, file: str, name: str) -> CodeType:
    try:
        # dont_inherit: this module's own __future__ imports must not leak into the script.
        return compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise _does_not_compile(name, error) from error


def _does_not_compile(name: str, error: SyntaxError | ValueError) -> ScriptSyntaxError:
    where = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    return ScriptSyntaxError(
        f"the script {name!r} does not compile under {python} ({where}{_reason(error)}), so"
        " nothing was run; mend it and scan again",
        "syntax-error",
    )


def _reason(error: SyntaxError | ValueError) -> str:
    return (error.msg if isinstance(error, SyntaxError) else None) or str(error)


def _no_such_module(name: str) -> UsageError:
    if name.endswith(".py"):
        hint = f"-m takes a module name: try -m {name[:-3]}, or {name} without -m"
    else:
        hint = "check the name and the current folder"
    return UsageError(
        f"there is no module {name!r} (looked on sys.path, from {os.getcwd()!r}); {hint}",
        "no-such-module",
    )


def _no_main_module(name: str) -> UsageError:
    return UsageError(
        f"{name!r} is a package without a __main__ module, so -m cannot run it; name the module"
        f" inside it that trains, e.g. -m {name}.train",
        "no-main-module",
    )


def _not_runnable(name: str) -> UsageError:
    return UsageError(
        f"the module {name!r} has no Python code that could be run; name a module written in"
        " Python",
        "no-python-code",
    )
