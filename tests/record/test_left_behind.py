"""Nothing is left behind: no hook, no mode, no memory; and models can be saved meanwhile."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import trainings
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from watched import Record

from fp16doctor.record.survey_plan import SurveyPlan


def everything_global() -> list[int]:
    return [
        len(torch_module._global_forward_hooks),
        len(torch_module._global_forward_pre_hooks),
        len(torch_module._global_forward_hooks_always_called),
        len(torch_module._global_backward_hooks),
        len(torch_optimizer._global_optimizer_pre_hooks),
        len(torch_optimizer._global_optimizer_post_hooks),
        len(_get_current_dispatch_mode_stack()),
        id(torch.amp.GradScaler.update),
        id(torch.amp.GradScaler.step),
    ]


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    before = everything_global()
    yield
    assert everything_global() == before


def test_after_training(record: Record) -> None:
    record(trainings.fp16_scaler, plan=SurveyPlan())


@pytest.mark.parametrize("where", ["forward", "backward", "step", "mode"])
def test_after_an_exception(where: str, record: Record) -> None:
    class Broken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if where == "forward":
                raise KeyboardInterrupt
            return super().forward(x)

    class Strict(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise ArithmeticError

    def run() -> None:
        model = nn.Sequential(Broken(3, 3), nn.ReLU())
        out = model(torch.randn(2, 3))
        if where == "backward":
            out.register_hook(lambda g: 1 / 0)
        out.sum().backward()
        Strict(model.parameters(), lr=0.1).step()
        raise NotImplementedError

    with pytest.raises((KeyboardInterrupt, ZeroDivisionError, ArithmeticError)):
        record(run)


def test_instances_carry_nothing(record: Record) -> None:
    """Saving, copying and pickling work in the middle of a recording, and give plain objects."""

    def run() -> tuple[bytes, nn.Module, nn.Module]:
        model = trainings.net()
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(2, 6)).sum().backward()
        optimizer.step()
        file = io.BytesIO()
        torch.save(model, file)
        torch.save(optimizer.state_dict(), io.BytesIO())
        return file.getvalue(), copy.deepcopy(model), pickle.loads(pickle.dumps(model))

    saved, copied, unpickled = record(run, plan=SurveyPlan()).result
    loaded = torch.load(io.BytesIO(saved), weights_only=False)
    for model in (loaded, copied, unpickled):
        for part in model.modules():
            assert not part._forward_hooks
            assert not part._forward_pre_hooks
            assert not part._backward_hooks


def test_activations_die_when_the_script_lets_go(record: Record) -> None:
    alive: list[list[bool]] = []

    def run() -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            seen: list[weakref.ref[Any]] = []
            hook = model[1].register_forward_hook(
                lambda m, a, out, seen=seen: seen.append(weakref.ref(out.untyped_storage()))
            )
            loss = model(torch.randn(2, 6)).sum()
            hook.remove()
            loss.backward()
            del loss
            alive.append([ref() is not None for ref in seen])
            optimizer.step()

    record(run)
    assert alive == [[False], [False]]


def test_a_closed_step_is_dropped(record: Record) -> None:
    """The batch of a finished step is freed, and so is its tape."""

    def run() -> list[bool]:
        model, batches = nn.Linear(6, 3), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            x = torch.ones(2, 6)
            batches.append(weakref.ref(x.untyped_storage()))
            model(x).sum().backward()
            del x
            optimizer.step()
        model(torch.ones(2, 6))
        return [ref() is not None for ref in batches]

    seen = record(run, tapes=False)
    assert seen.result == [False, False, False]
    assert not seen.recorder.roll.ops
    recorder = weakref.ref(seen.recorder)
    seen.recorder = None  # type: ignore[assignment]
    gc.collect()
    assert recorder() is None


def test_a_caught_exception_is_let_go(record: Record) -> None:
    """Its traceback would keep the activations of the failed batch alive."""

    def run() -> bool:
        model = nn.Linear(4, 4)

        def attempt() -> weakref.ref[Any]:
            big = model(torch.randn(2, 4))
            ref = weakref.ref(big.untyped_storage())
            try:
                big @ torch.randn(3, 3)
            except RuntimeError:
                return ref
            raise AssertionError

        ref = attempt()
        model(torch.randn(2, 4))
        gc.collect()
        return ref() is None

    assert record(run).result
