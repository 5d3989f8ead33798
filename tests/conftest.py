"""Common ground of all tests: goldens, seeds, the GPU marker."""

from __future__ import annotations

import difflib
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# One thread, here and in the scripts that tests start: the same sums on every machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="accept what the tests produced as the new content of tests/golden and docs/rules.md",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch sees none"))


@pytest.fixture(autouse=True)
def _seeds() -> None:
    import numpy
    import torch

    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that a test runs is given arguments of its own, and keeps them."""
    monkeypatch.setattr(sys, "argv", sys.argv)


@pytest.fixture
def update_golden(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("--update-golden"))


@pytest.fixture
def golden(update_golden: bool) -> Callable[[str, str], None]:
    """Compare ``text`` with tests/golden/``name``; with --update-golden write it there."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        actual = path.with_name(path.name + ".actual")
        if update_golden:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        if path.exists() and expected == text:
            actual.unlink(missing_ok=True)
            return
        actual.parent.mkdir(parents=True, exist_ok=True)
        actual.write_text(text, encoding="utf-8")
        diff = difflib.unified_diff(
            expected.splitlines(), text.splitlines(), name, actual.name, lineterm=""
        )
        pytest.fail(
            f"{name} differs; look at {actual}, accept with --update-golden\n" + "\n".join(diff)
        )

    return compare
