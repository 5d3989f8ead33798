"""Tracebacks lose fp16doctor's frames wherever they stand, and nothing else."""

from __future__ import annotations

import builtins
import os
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest

import fp16doctor
from fp16doctor.record.peel import chain, peel, user_line

PACKAGE = os.path.dirname(os.path.abspath(fp16doctor.__file__))


def ours(source: str, **names: Any) -> dict[str, Any]:
    """Define functions whose code claims to lie in the package."""
    code: CodeType = compile(source, os.path.join(PACKAGE, "record", "made_up.py"), "exec")
    exec(code, names)
    return names


through: Callable[..., Any] = ours("def through(f):\n    return f()\n")["through"]


def users() -> None:
    raise ValueError("here")


def functions(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def caught(action: Callable[[], Any]) -> BaseException:
    try:
        action()
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError("it did not raise")


def test_frames_are_taken_out_of_the_middle() -> None:
    error = caught(lambda: through(lambda: through(users)))
    assert functions(error).count("through") == 2
    peel(error)
    assert functions(error) == ["caught", "<lambda>", "<lambda>", "users"]


def test_causes_and_contexts_are_peeled_too() -> None:
    def wrapped() -> None:
        try:
            through(users)
        except ValueError as error:
            try:
                through(lambda: 1 / 0)
            except ZeroDivisionError:
                raise RuntimeError("both") from error

    error = caught(wrapped)
    peel(error)
    names = sorted(type(link).__name__ for link in chain(error))
    assert names == ["RuntimeError", "ValueError", "ZeroDivisionError"]
    assert not any("through" in functions(link) for link in chain(error))


def test_members_of_a_group_are_peeled() -> None:
    group = getattr(builtins, "ExceptionGroup", None)
    if group is None:
        pytest.skip("exception groups are new in Python 3.11")
    member = caught(lambda: through(users))
    peel(group("several", [member]))
    assert "through" not in functions(member)


def test_a_traceback_the_script_still_holds_is_not_changed() -> None:
    error = caught(lambda: through(users))
    held = error.__traceback__
    before = traceback.extract_tb(held)
    peel(error)
    assert traceback.extract_tb(held) == before


def test_a_fault_of_our_own_keeps_its_frames() -> None:
    error = ours("def fails():\n    raise KeyError('ours')\n")
    failure = caught(error["fails"])
    failure.__traceback__ = failure.__traceback__.tb_next  # type: ignore[union-attr]
    peel(failure)
    assert functions(failure) == ["fails"]


def test_a_cycle_of_contexts_ends() -> None:
    first, second = ValueError(), KeyError()
    first.__context__, second.__cause__ = second, first
    assert list(chain(first)) == [first, second]


MODE = """
class Mode(Base):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
"""


def test_frames_torch_adds_for_a_mode_go_with_it() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    def mismatched() -> Any:
        return torch.nn.Linear(4, 2)(torch.ones(3, 5))

    plain = caught(mismatched)
    with ours(MODE, Base=TorchDispatchMode)["Mode"]():
        watched = caught(mismatched)
    assert len(functions(watched)) > len(functions(plain))
    peel(watched)
    assert functions(watched) == functions(plain)


def test_users_line_is_the_innermost_outside_of_libraries() -> None:
    torch = pytest.importorskip("torch")
    here = os.path.dirname(os.path.realpath(__file__))

    def mismatched() -> Any:
        return torch.nn.Linear(4, 2)(torch.ones(3, 5))

    line = user_line(caught(lambda: through(mismatched)), here)
    assert line is not None
    assert (line.file, line.text) == (
        "test_peel.py",
        "return torch.nn.Linear(4, 2)(torch.ones(3, 5))",
    )
    elsewhere = user_line(caught(users), os.path.join(os.sep, "elsewhere"))
    assert elsewhere is not None
    assert elsewhere.file == os.path.realpath(__file__)
