"""Parts of libraries that the script replaced are out of the way of our own work, and come back."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from watched import Record

from fp16doctor.record import own
from fp16doctor.record.originals import Originals
from fp16doctor.record.survey_plan import SurveyPlan

RECORD = Path(__file__).parents[2] / "fp16doctor" / "record"


def mine(*args: Any, **kwargs: Any) -> Any:
    raise LookupError("the script's own")


def test_replaced_functions_are_away_inside_and_back_behind(monkeypatch: Any) -> None:
    originals = Originals()
    stack, dumps = torch.stack, json.dumps
    monkeypatch.setattr(torch, "stack", mine)
    monkeypatch.setattr(json, "dumps", mine)
    with originals:
        assert (torch.stack, json.dumps) == (stack, dumps)
        with originals:
            assert torch.stack is stack
        assert torch.stack is stack
    assert (torch.stack, json.dumps) == (mine, mine)


def test_deleted_functions_are_there_inside(monkeypatch: Any) -> None:
    originals, dumps = Originals(), json.dumps
    monkeypatch.delattr(json, "dumps")
    with originals:
        assert json.dumps is dumps
    assert not hasattr(json, "dumps")


def test_methods_that_hide_those_of_the_base_are_away_inside(monkeypatch: Any) -> None:
    originals = Originals()
    monkeypatch.setattr(torch.Tensor, "double", mine, raising=False)
    monkeypatch.setattr(torch.Tensor, "of_the_script", mine, raising=False)
    with originals:
        assert torch.ones(1).double().dtype is torch.float64
        assert torch.Tensor.of_the_script is mine  # type: ignore[attr-defined]
    with pytest.raises(LookupError):
        torch.ones(1).double()


def test_they_come_back_after_a_fault(monkeypatch: Any) -> None:
    originals = Originals()
    monkeypatch.setattr(json, "dumps", mine)
    with pytest.raises(ZeroDivisionError), originals:
        raise ZeroDivisionError
    assert json.dumps is mine


def test_recording_goes_on_with_what_torch_had_before(record: Record, monkeypatch: Any) -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)

    def run() -> None:
        for name in own.__all__:
            if name not in ("no_grad", "is_grad_enabled"):  # torch's own optimizers call these
                monkeypatch.setattr(torch, name, mine)
        (weight * 2).sum().backward()
        optimizer.step()

    seen = record(run, plan=SurveyPlan())
    assert len(seen.steps) == 1
    monkeypatch.undo()


# Bundles and checkpoints are read and written when no script is running.
APART = ("bundle", "checkpoint.py", "inert.py", "stored_tensors.py")
BETWEEN_OPS = sorted(p for p in RECORD.rglob("*.py") if not {p.name, p.parent.name} & {*APART})


@pytest.mark.parametrize("path", BETWEEN_OPS, ids=lambda p: p.stem)
def test_between_two_ops_torch_is_called_by_names_of_our_own(path: Path) -> None:
    classes = {"device", "empty_like"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, name = node.func.value, node.func.attr
            called = isinstance(owner, ast.Name) and owner.id == "torch"
            assert not called or name in classes, f"torch.{name}, line {node.lineno}"
