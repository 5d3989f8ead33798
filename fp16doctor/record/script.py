"""Runs a user's script as Python would, as ``__main__``, and comes back with how it ended.

Must not know what watches the run (``pipeline``) or where a report is written (``cli``).
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import ModuleType

from fp16doctor.errors import Fp16DoctorError
from fp16doctor.record.locate import Located, ScriptSyntaxError, locate_file, locate_module
from fp16doctor.record.originals import Originals
from fp16doctor.record.peel import chain, peel, user_line
from fp16doctor.schema.recording import Outcome, OutcomeKind

__all__ = [
    "PreparedScript",
    "ScriptRun",
    "ScriptSyntaxError",
    "StopScript",
    "Target",
    "prepare",
    "show_exception",
]


class StopScript(BaseException):
    """Raised inside the script when enough steps were seen; ``except Exception`` lets it pass."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the command line asks to run."""

    name: str  # path of the script, or name of the module
    is_module: bool  # given by -m
    argv: tuple[str, ...]  # the script's own arguments


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """A run that has ended."""

    outcome: Outcome
    exception: BaseException | None = None  # what ended it; None at its end and after StopScript
    watch_failure: Exception | None = None  # what the watch raised when it was left


@dataclass(frozen=True, slots=True)
class PreparedScript:
    """A script that is found and compiled, or whose packages failed while they were imported."""

    target: Target
    located: Located | None
    failure: BaseException | None = None  # raised by the packages above a module

    @property
    def source(self) -> str | bytes | None:
        """The script's text, where there is one."""
        return None if self.located is None else self.located.source

    def with_tree(self, tree: ast.Module | None) -> PreparedScript:
        """Return the script with other code in the same place; itself where ``tree`` is None."""
        if tree is None or self.located is None:
            return self
        code = compile(tree, self.located.file, "exec", dont_inherit=True)
        return replace(self, located=replace(self.located, code=code))

    def run(self, watch: AbstractContextManager[object]) -> ScriptRun:
        """Run the script's code inside ``watch``; whatever ends it is returned, never raised.

        ``sys.modules["__main__"]``, ``sys.argv`` and ``sys.path[0]`` stay as the script had them:
        its classes are pickled and its exit handlers run after this returns.

        Raises:
            Exception: ``watch`` could not be entered; the script was not started then.
        """
        if self.located is None:
            if self.failure is not None:
                peel(self.failure)
            return _ended(self.failure, os.getcwd(), None)
        process = os.getpid()
        watch.__enter__()
        originals = Originals()  # with what the watch has put there, which it takes away itself
        exception = _execute(self.located, self.target.argv)
        with originals:
            # A child that the script forked comes by here as well; the watch is its parent's.
            failure = _leave(watch, exception) if os.getpid() == process else None
            ended = _ended(exception, self.located.folder, failure)
            if ended.exception is not None:
                peel(ended.exception)
            return ended


def prepare(target: Target) -> PreparedScript:
    """Find and compile a script, before anything of it runs.

    For a module the packages above it are imported, as Python does to find it. What they raise is
    the script's own failure, kept for ``run``.

    Raises:
        UsageError: no-such-script, unreadable-script, is-a-directory, no-such-module,
            no-main-module, no-python-code.
        ScriptSyntaxError: the script does not compile.
    """
    if not target.is_module:
        return PreparedScript(target, locate_file(target.name))
    _set_command_line(os.getcwd(), ("-m", *target.argv))
    try:
        return PreparedScript(target, locate_module(target.name))
    except Fp16DoctorError:
        raise
    except BaseException as failure:  # noqa: BLE001  the user's packages may end in any way a script may
        return PreparedScript(target, None, failure)


def show_exception(run: ScriptRun) -> int:
    """Show what ended the script as Python would, through its ``sys.excepthook``.

    Returns:
        The exit status: the script's, or that of a hook that exits by itself.
    """
    exception = run.exception
    if exception is None:
        return run.outcome.status
    if isinstance(exception, SystemExit):
        return _show_exit(exception)
    return _call_hook(exception, run.outcome.status)


def _set_command_line(path0: str, argv: tuple[str, ...]) -> None:
    sys.argv = list(argv)
    # Under -P and -I Python puts no folder of its own in front of sys.path: nothing to replace.
    if not getattr(sys.flags, "safe_path", bool(sys.flags.isolated)):
        sys.path[:1] = [path0]


def _execute(located: Located, argv: tuple[str, ...]) -> BaseException | None:
    _set_command_line(located.path0, (located.argv0, *argv))
    module = _install_main(located)
    try:
        exec(located.code, vars(module))
    except BaseException as exception:  # noqa: BLE001  SystemExit, KeyboardInterrupt and StopScript as well
        return exception
    return None


def _install_main(located: Located) -> ModuleType:
    module = ModuleType("__main__")
    vars(module).update(
        __builtins__=builtins,
        __cached__=located.cached,
        __file__=located.file,
        __loader__=located.loader,
        __package__=located.package,
        __spec__=located.spec,
    )
    if "__annotations__" in vars(sys.modules["__main__"]):  # this Python gives __main__ one
        vars(module)["__annotations__"] = {}
    sys.modules["__main__"] = module
    return module


def _leave(
    watch: AbstractContextManager[object], exception: BaseException | None
) -> Exception | None:
    try:
        if exception is None:
            watch.__exit__(None, None, None)
        else:
            watch.__exit__(type(exception), exception, exception.__traceback__)
    except Exception as failure:  # noqa: BLE001  the script's result must outlive our own faults
        return failure
    return None


def _ended(
    exception: BaseException | None, folder: str, watch_failure: Exception | None
) -> ScriptRun:
    outcome = outcome_of(exception, folder)
    over = outcome.kind in (OutcomeKind.FINISHED, OutcomeKind.STOPPED)
    return ScriptRun(outcome, None if over else exception, watch_failure)


def outcome_of(exception: BaseException | None, folder: str) -> Outcome:
    """Return how a run ended that ended with ``exception``; ``folder`` is the script's."""
    if exception is None:
        return Outcome(OutcomeKind.FINISHED)
    kind, status = _kind(exception)
    if kind is OutcomeKind.FINISHED or isinstance(exception, StopScript):
        return Outcome(kind)
    return Outcome(
        kind=kind,
        status=status,
        exception=type(exception).__qualname__,
        message=_text(exception),
        source=user_line(exception, folder),
    )


def _kind(exception: BaseException) -> tuple[OutcomeKind, int]:
    # What the script's clean-up raises after StopScript is a consequence of being stopped.
    if any(isinstance(link, StopScript) for link in chain(exception)):
        return OutcomeKind.STOPPED, 0
    if isinstance(exception, SystemExit):
        status = _exit_status(exception)
        return (OutcomeKind.EXITED if status else OutcomeKind.FINISHED), status
    if isinstance(exception, KeyboardInterrupt):
        return OutcomeKind.INTERRUPTED, 130
    return OutcomeKind.RAISED, 1


def _exit_status(exception: SystemExit) -> int:
    """Status Python exits with: None is 0, an int itself (its low byte on POSIX), else 1."""
    code = exception.code
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1
    return code & 0xFF if os.name == "posix" else code


def _text(exception: BaseException) -> str:
    try:
        return str(exception)
    except Exception:  # noqa: BLE001  a user's __str__ may fail; traceback.py does the same
        return "<exception str() failed>"


def _show_exit(exception: SystemExit) -> int:
    if exception.code is not None and not isinstance(exception.code, int):
        _write(f"{exception.code}\n")
    return _exit_status(exception)


def _call_hook(exception: BaseException, status: int) -> int:
    """``sys.excepthook`` as the interpreter calls it, its own failures included."""
    arguments = (type(exception), exception, exception.__traceback__)
    sys.last_type, sys.last_value, sys.last_traceback = arguments
    if sys.version_info >= (3, 12):
        sys.last_exc = exception
    try:
        sys.excepthook(*arguments)
    except SystemExit as stop:
        return _show_exit(stop)
    except BaseException as broken:  # noqa: BLE001  the user's hook may fail in any way
        peel(broken)
        _write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(broken), broken, broken.__traceback__)
        _write("\nOriginal exception was:\n")
        sys.__excepthook__(*arguments)
    return status


def _write(text: str) -> None:
    if sys.stderr is not None:  # None where there is no console
        sys.stderr.write(text)
