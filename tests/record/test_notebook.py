"""Lines of a notebook's cells, with a stand-in for the shell that ran them."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fp16doctor.record.notebook import cell_of
from fp16doctor.record.source_lines import SourceLines

CELL = "/tmp/ipykernel_12/651682180.py"


def shell(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    module = ModuleType("IPython")
    vars(module)["get_ipython"] = lambda: answer
    monkeypatch.setitem(sys.modules, "IPython", module)


def test_a_cell_has_the_number_that_stands_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shell(monkeypatch, SimpleNamespace(compile=SimpleNamespace(_filename_map={CELL: 3})))
    assert cell_of(CELL) == "cell 3"
    assert cell_of("/tmp/ipykernel_12/other.py") == ""
    assert cell_of("/home/me/train.py") == ""
    assert SourceLines("/home/me").shorten(CELL) == "cell 3"


@pytest.mark.parametrize("answer", [None, SimpleNamespace(), SimpleNamespace(compile=None)])
def test_without_a_shell_the_file_is_named(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    shell(monkeypatch, answer)
    assert cell_of(CELL) == ""
    assert SourceLines("/home/me").shorten(CELL) == CELL


def test_without_ipython_there_is_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert cell_of(CELL) == ""
