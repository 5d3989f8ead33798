"""Names of modules: shared, added later, made on the fly, called directly, called in a thread."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from watched import Record, Watched, short
from watched import one_backward as sites_of


def paths(seen: Watched, name: str) -> list[str | None]:
    return [op.site.module_path for op in seen.ops if short(op.op) == name]


def test_a_shared_module_has_its_first_name(record: Record) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = self.first

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.second(self.first(x))
            return out

    seen = sites_of(record, lambda: Tied()(torch.randn(2, 3)).sum())
    assert paths(seen, "addmm") == ["first", "first"]


def test_a_part_called_directly(record: Record) -> None:
    """Once the whole is known, a part has its name below it, called from anywhere."""

    class Auto(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(3, 2), nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.decoder(self.encoder(x))
            return out

    def loss() -> Tensor:
        model, x = Auto(), torch.randn(2, 3)
        alone = model.encoder(x)
        return (model(x) - model.decoder(alone)).square().sum() + model.encoder(x).sum()

    seen = sites_of(record, loss)
    assert paths(seen, "addmm") == ["", "encoder", "decoder", "decoder", "encoder"]


def test_a_module_added_later(record: Record) -> None:
    def loss() -> Tensor:
        model = nn.Sequential(nn.Linear(3, 3), nn.Sequential())
        out = model(torch.randn(2, 3))
        model.append(nn.Linear(3, 3))
        model[1].append(nn.Tanh())
        return out.sum() + model(torch.randn(2, 3)).sum()

    seen = sites_of(record, loss)
    assert paths(seen, "addmm") == ["0", "0", "2"]
    assert paths(seen, "tanh") == ["1.0"]


def test_a_module_added_later_and_called_from_far_above(record: Record) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential()

        def forward(self, x: Tensor) -> Tensor:
            for part in self.inner:
                x = part(x)
            return x

    def loss() -> Tensor:
        model = Outer()
        out = model(torch.randn(2, 3))
        model.inner.append(nn.Linear(3, 3))
        return out.sum() + model(torch.randn(2, 3)).sum()

    assert paths(sites_of(record, loss), "addmm") == ["inner.0"]


def test_modules_made_in_each_call_leave_no_trace(record: Record) -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = nn.Softmax(-1)(self.up(x))
            return out

    def run() -> tuple[int, int]:
        model = Lazy()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(20):
            loss = nn.MSELoss()(model(torch.randn(2, 3)), torch.zeros(2, 3))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return 0, 0

    seen = record(run)
    assert set(paths(seen, "_softmax")) == {"Softmax"}
    modules = seen.recorder.modules
    assert not modules.roots()
    assert not modules._names
    assert not modules._roots


@pytest.mark.parametrize(("adopted", "expected"), [(False, "1.0"), (True, "0")])
def test_a_name_given_by_the_script_holds(adopted: bool, expected: str, record: Record) -> None:
    """``adopt``: a wrapper called later does not rename what the user named."""
    model = nn.Sequential(nn.Linear(3, 3))
    wrapper = nn.Sequential(nn.Identity(), model)

    def run() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        wrapper(torch.randn(2, 3)).sum().backward()
        optimizer.step()

    seen = record(run, started=lambda r: adopted and r.modules.adopt(model))
    assert paths(seen, "addmm") == [expected]


def test_modules_in_another_thread_are_not_ours(record: Record) -> None:
    def loss() -> Tensor:
        model, other = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3))
        begun, done = threading.Event(), threading.Event()

        class Slow(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                begun.set()
                done.wait(10)
                return x

        other.append(Slow())
        thread = threading.Thread(target=lambda: other(torch.randn(2, 3)))
        thread.start()
        begun.wait(10)
        out = F.relu(model(torch.randn(2, 3)))
        done.set()
        thread.join()
        return out.sum()

    seen = sites_of(record, loss)
    assert paths(seen, "addmm") == [""]
    assert paths(seen, "relu") == [None]


def test_a_wrapped_model_has_the_names_it_had_before(record: Record) -> None:
    """As ``nn.parallel`` wraps it; so have its parameters."""

    class DistributedDataParallel(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.module(x)
            return out

    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    seen = sites_of(record, lambda: model(torch.randn(2, 3)).sum())
    assert paths(seen, "addmm") == ["0", "1"]
    names = {leaf.name for leaf in seen.tapes[0].leaves.values() if leaf.is_parameter}
    assert names == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_a_model_in_a_lightning_module_has_its_name_there(record: Record) -> None:
    """Its ``training_step`` is no forward; parameters go by the same names."""

    class LightningModule(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))

        def training_step(self, x: Tensor) -> Tensor:
            out: Tensor = self.net(x)
            return out.sum()

    model = LightningModule()
    seen = sites_of(record, lambda: model.training_step(torch.randn(2, 3)))
    assert paths(seen, "addmm") == ["net.0", "net.1"]
    names = {leaf.name for leaf in seen.tapes[0].leaves.values() if leaf.is_parameter}
    assert names == {"net.0.weight", "net.0.bias", "net.1.weight", "net.1.bias"}
