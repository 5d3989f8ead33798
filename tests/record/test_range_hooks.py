"""Which tensors the hooks see: outputs of every kind, gradients, each once; nothing left behind."""

from __future__ import annotations

import copy
import io
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.utils.checkpoint import checkpoint

from fp16doctor.record.module_paths import ModulePaths
from fp16doctor.record.range_hooks import Look, floating_tensors
from fp16doctor.record.range_stats import range_stats
from fp16doctor.record.read_back import read_back
from fp16doctor.record.survey import Survey
from fp16doctor.record.survey_plan import SurveyPlan
from fp16doctor.schema.ranges import ModuleRanges, RangeStats


class Surveyed:
    """One surveyed step: ``ranges[path, role]``."""

    def __init__(self, look: Look, wanted: Callable[[str, nn.Module], bool]) -> None:
        self.paths = ModulePaths(
            lambda module, args: self.survey.root_called(),
            lambda *seen: self.survey.hooks.left(*seen),
        )
        self.cautions: list[str] = []
        plan = SurveyPlan(lambda step: look, wanted)
        self.survey = Survey(plan, self.paths, lambda *said: self.cautions.append(said[1]))

    def close(self, step: int = 0, scale: float = 1.0) -> None:
        self.survey.close(step, scale, read_back(self.survey.pending()))

    @property
    def ranges(self) -> dict[tuple[str, str], ModuleRanges]:
        return {(r.module_path, r.role): r for r in self.survey.ranges()}

    def stats(self, path: str, role: str) -> RangeStats:
        (stats,) = self.ranges[path, role].stats
        return stats


@contextmanager
def surveyed(
    look: Look = Look.FULL, wanted: Callable[[str, nn.Module], bool] = lambda path, module: True
) -> Iterator[Surveyed]:
    it = Surveyed(look, wanted)
    it.paths.attach()
    it.survey.attach()
    it.survey.begin(0)
    try:
        yield it
        it.close()
    finally:
        it.paths.detach()
        it.survey.detach()
        it.survey.drop()
    assert it.cautions == []


class Wrap(nn.Module):
    """Returns whatever ``make`` makes of a linear layer's output."""

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.make = nn.Linear(4, 4), make

    def forward(self, x: Tensor) -> Any:
        return self.make(self.inner(x))


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass
class Holder:
    hidden: Tensor
    other: list[Tensor]
    name: str = "x"


@pytest.mark.parametrize(
    ("make", "roles"),
    [
        (lambda y: {"logits": y * 2}, ["output"]),
        (lambda y: (y * 2, y * 3), ["output[0]", "output[1]"]),
        (lambda y: Pair(y * 2, y * 3), ["output[0]", "output[1]"]),
        (lambda y: Holder(y * 2, [y * 3]), ["output[0]", "output[1]"]),
        (lambda y: OrderedDict(a=y * 2, b={"c": [y * 3]}), ["output[0]", "output[1]"]),
        (lambda y: [y * 2, torch.arange(3), None, "word"], ["output"]),
    ],
    ids=["dict", "tuple", "namedtuple", "dataclass", "nested", "list"],
)
def test_outputs_are_found_in_any_container(make: Callable[..., Any], roles: list[str]) -> None:
    model, x = Wrap(make), torch.randn(2, 4)
    with surveyed() as seen:
        tensors = floating_tensors(model(x))
        sum(t.sum() for t in tensors).backward()
    for role, tensor in zip(roles, tensors, strict=True):
        assert seen.stats("", role) == range_stats(tensor)
        assert seen.stats("", "grad_" + role).amax == 1.0
    assert seen.stats("inner", "output") == range_stats(model.inner(x))
    assert seen.stats("inner", "grad_output").amax == (2.0 if len(roles) == 1 else 5.0)


def test_a_nest_without_end_and_a_very_long_list_are_bounded() -> None:
    endless: list[Any] = [torch.ones(1)]
    endless.append(endless)
    assert len(floating_tensors(endless)) == 8
    assert len(floating_tensors([torch.ones(1)] * 1000)) == 32


def test_gradients_are_those_of_the_outputs() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    h = model[0](x)
    a = torch.tanh(h)
    y = model[2](a)
    expected = torch.autograd.grad(y.square().sum(), [h, a, y])
    with surveyed() as seen:
        model(x).square().sum().backward()
    for path, gradient in zip("012", expected, strict=True):
        assert seen.stats(path, "grad_output") == range_stats(gradient)
    assert seen.stats("", "grad_output") == seen.stats("2", "grad_output")
    assert seen.stats("", "output") == seen.stats("2", "output")


def test_a_change_in_place_of_an_output_is_seen_apart_and_breaks_nothing() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    before = range_stats(model[0](x))

    def gradients() -> list[Tensor]:
        y = model(x)
        y[:, 0] *= 2.0  # on a view of the root's output
        return list(torch.autograd.grad(y.sum(), list(model.parameters())))

    plain = gradients()
    with surveyed() as seen:
        watched = gradients()
    assert all(map(torch.equal, plain, watched))
    assert seen.stats("0", "output") == before
    assert seen.stats("1", "output").n_zero > 0 == seen.stats("0", "output").n_zero
    assert seen.stats("1", "grad_output").amax > 0.0


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_block_counts_once(reentrant: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = checkpoint(self.block, x * 1.0, use_reentrant=reentrant)
            return y

    torch.manual_seed(1)
    net, x = Net(), torch.randn(3, 4, requires_grad=True)
    with surveyed() as plain:
        net.block(x * 1.0).square().sum().backward()
    with surveyed() as seen:
        net(x).square().sum().backward()
    for theirs, ours in (("0", "block.0"), ("1", "block.1")):
        for role in ("output", "grad_output"):
            assert seen.stats(ours, role) == plain.stats(theirs, role)


def test_a_module_called_twice_adds_up() -> None:
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    with surveyed() as seen:
        (layer(x) + layer(2 * x)).sum().backward()
    assert seen.stats("", "output").numel == 16
    assert seen.stats("", "grad_output").numel == 16
    assert seen.ranges["", "output"].n_looked == 1


def test_two_models_with_the_same_paths_are_kept_apart() -> None:
    one, two = nn.Sequential(nn.Linear(4, 4)), nn.ModuleDict({"0": nn.Linear(4, 3)})
    two.forward = lambda x: two["0"](x)  # type: ignore[method-assign]
    with surveyed() as seen:
        two(one(torch.randn(5, 4)))
    assert seen.stats("one.0", "output").numel == 20
    assert seen.stats("two.0", "output").numel == 15


def test_two_models_without_variables_are_kept_apart_by_their_classes() -> None:
    class Second(nn.ModuleDict):
        def forward(self, x: Tensor) -> Tensor:
            return self["0"](x)  # type: ignore[no-any-return]

    held = [nn.Sequential(nn.Linear(4, 4)), Second({"0": nn.Linear(4, 3)})]
    with surveyed() as seen:
        held[1](held[0](torch.randn(5, 4)))
    assert seen.stats("0", "output").numel == 20
    assert seen.stats("Second.0", "output").numel == 15


def test_calls_without_gradients_are_no_training() -> None:
    model = nn.Linear(4, 4)
    with surveyed() as seen, torch.no_grad():
        model(torch.randn(2, 4))
    assert seen.ranges == {}


def test_only_wanted_modules_are_looked_at() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with surveyed(wanted=lambda path, module: path == "1") as seen:
        model(torch.randn(2, 4)).sum().backward()
    assert set(seen.ranges) == {("1", "output"), ("1", "grad_output")}


def test_a_module_that_raises_leaves_the_rest_in_order() -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    with surveyed() as seen:
        with pytest.raises(ValueError, match="no"):
            nn.Sequential(nn.Linear(4, 4), Raises())(torch.randn(2, 4))
        nn.Linear(4, 2)(torch.randn(2, 4))
    assert seen.stats("0", "output").numel == 8


def test_function_transforms_are_left_alone() -> None:
    model, x = nn.Linear(4, 1), torch.randn(3, 4)
    with surveyed():
        torch.func.vmap(torch.func.grad(lambda v: model(v).sum()))(x)


def test_an_odd_tensor_costs_only_itself() -> None:
    it = Surveyed(Look.FULL, lambda path, module: True)
    it.survey.begin(0)
    it.survey.hooks.look_at = lambda tensor: 1 / 0  # type: ignore[method-assign, return-value]
    with pytest.MonkeyPatch.context():
        it.paths.attach()
        try:
            nn.Linear(4, 4)(torch.randn(2, 4)).sum().backward()
        finally:
            it.paths.detach()
    assert "ZeroDivisionError" in it.cautions[0]
    it.survey.drop()


def test_models_are_saved_and_copied_as_if_nothing_watched() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with surveyed(), warnings.catch_warnings():
        warnings.simplefilter("error")
        out = model(torch.randn(2, 4))
        torch.save(model, io.BytesIO())
        torch.save(out, io.BytesIO())
        twin = copy.deepcopy(model)
        out.sum().backward()
    assert not twin[0]._forward_hooks
    assert not twin[0]._backward_hooks


def test_no_hook_is_left_behind() -> None:
    before = [len(_hooks(n)) for n in ("_global_forward_hooks", "_global_forward_pre_hooks")]
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with surveyed():
        out = model(torch.randn(2, 4))
    assert not out._backward_hooks
    assert before == [
        len(_hooks(n)) for n in ("_global_forward_hooks", "_global_forward_pre_hooks")
    ]


def _hooks(name: str) -> Any:
    return getattr(torch_modules, name)
