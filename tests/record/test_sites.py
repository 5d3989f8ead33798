"""Sites: the module and the line of every op, forward and backward."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import trainings
from torch import Tensor, nn
from watched import Record, Watched, short
from watched import one_backward as sites_of

from fp16doctor.schema.location import Phase
from fp16doctor.schema.tape import OpCall

HERE = Path(__file__)
BACKWARD = Phase.BACKWARD


def texts(seen: Watched, name: str) -> list[str | None]:
    return [op.site.source and op.site.source.text for op in seen.ops if short(op.op) == name]


def paths(seen: Watched, name: str) -> list[str | None]:
    return [op.site.module_path for op in seen.ops if short(op.op) == name]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.up = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        h = self.up(h)
        return x + h.sin()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x).exp()
        return out


def test_forward_ops(record: Record) -> None:
    seen = sites_of(record, lambda: Net()(torch.randn(2, 4)).mean())
    assert paths(seen, "native_layer_norm") == ["blocks.0.norm", "blocks.1.norm"]
    assert paths(seen, "addmm") == ["blocks.0.up", "blocks.1.up", "head"]
    assert paths(seen, "sin") == ["blocks.0", "blocks.1"]
    assert paths(seen, "exp") == [""]
    assert paths(seen, "mean") == [None]
    assert texts(seen, "native_layer_norm") == ["h = self.norm(x)"] * 2
    assert texts(seen, "sin") == ["return x + h.sin()"] * 2
    site = seen.one("exp").site
    assert site.source is not None
    assert (site.source.file, site.source.function) == (HERE.name, "Net.forward")
    assert HERE.read_text().splitlines()[site.source.line - 1].strip() == site.source.text
    assert site.caller is None
    assert site.module_class == "Net"


def test_backward_ops_have_the_place_of_their_forward_op(record: Record) -> None:
    seen = sites_of(record, lambda: Net()(torch.randn(2, 4)).mean())
    assert paths(seen, "native_layer_norm_backward") == ["blocks.1.norm", "blocks.0.norm"]
    assert texts(seen, "native_layer_norm_backward") == ["h = self.norm(x)"] * 2
    assert paths(seen, "cos") == ["blocks.1", "blocks.0"]
    assert texts(seen, "cos") == ["return x + h.sin()"] * 2
    products = [op for op in seen.ops if short(op.op) == "mm"]
    assert {op.site.phase for op in products} == {BACKWARD}
    assert {op.site.module_path for op in products} == {"head", "blocks.1.up", "blocks.0.up"}


def test_backward_of_a_view_has_its_place(record: Record) -> None:
    """A view is no op of the tape, but its backward is."""

    def loss() -> Tensor:
        x = torch.randn(3, 4, requires_grad=True)
        row = x[1]
        return row.expand(5, 4).sum()

    seen = sites_of(record, loss)
    assert texts(seen, "select_backward") == ["row = x[1]"]
    assert "return row.expand(5, 4).sum()" in texts(seen, "sum")


def test_code_without_modules(record: Record) -> None:
    def attention(x: Tensor) -> Tensor:
        scores = x @ x.t()
        return scores.softmax(-1) @ x

    seen = sites_of(record, lambda: attention(torch.randn(3, 2, requires_grad=True)).sum())
    assert texts(seen, "_softmax") == ["return scores.softmax(-1) @ x"]
    assert texts(seen, "_softmax_backward_data") == ["return scores.softmax(-1) @ x"]
    site = seen.one("_softmax").site
    assert (site.module_path, site.module_class, site.phase) == (None, None, Phase.LOSS)
    assert site.source is not None
    assert site.source.function.endswith("attention")


def test_an_op_of_torch_is_placed_on_the_line_that_called_it(record: Record) -> None:
    seen = record(trainings.fp32)
    (update, *_) = [op for op in seen.ops if short(op.op) == "add_"]
    assert update.site.phase is Phase.OPTIMIZER
    assert update.site.source is not None
    assert update.site.source.text == "optimizer.step()"
    assert update.site.module_path == "0"  # of the parameter that it writes


# -- libraries -----------------------------------------------------------------------------------

LIBRARY = """
import torch

def norm(x):
    return x / x.square().mean().sqrt()

class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-1, 1)
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package that was installed, not written, by the user."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "normlib.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(folder))
    found = importlib.util.find_spec("normlib")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    sys.modules.pop("normlib", None)
    return module


def users_line(op: OpCall) -> tuple[str | None, str | None]:
    source, caller = op.site.source, op.site.caller
    return (
        source and f"{source.file}: {source.text}",
        caller and f"{caller.file}: {caller.text}",
    )


def test_a_librarys_line_and_the_users(library: Any, record: Record) -> None:
    def loss() -> Tensor:
        x = torch.randn(3, requires_grad=True)
        y = library.norm(x)
        return y.sum()

    seen = sites_of(record, loss)
    expected = (
        "normlib.py: return x / x.square().mean().sqrt()",
        f"{HERE.name}: y = library.norm(x)",
    )
    assert users_line(seen.one("sqrt")) == expected
    assert {users_line(op) for op in seen.ops if short(op.op) == "div"} >= {expected}


def test_a_backward_written_in_python_has_its_own_line(library: Any, record: Record) -> None:
    def loss() -> Tensor:
        x = torch.randn(3, requires_grad=True)
        y = library.Clip.apply(x)
        return trainings.Square.apply(y).sum()

    seen = sites_of(record, loss)
    assert users_line(seen.one("clamp")) == (
        "normlib.py: return g.clamp(-1, 1)",
        f"{HERE.name}: y = library.Clip.apply(x)",
    )
    backward = [op for op in seen.ops if op.site.phase is BACKWARD and short(op.op) == "mul"]
    assert {users_line(op) for op in backward} == {("odd_trainings.py: return 2 * x * grad", None)}


def test_a_hook_on_a_gradient_has_its_own_line(record: Record) -> None:
    def loss() -> Tensor:
        x = torch.randn(3, requires_grad=True)
        x.register_hook(lambda g: g.exp())
        return x.sum()

    assert texts(sites_of(record, loss), "exp") == ["x.register_hook(lambda g: g.exp())"]


def test_source_text_can_be_left_out(tmp_path: Path) -> None:
    from fp16doctor.record.source_lines import SourceLines

    lines = SourceLines(str(tmp_path), keep_text=False)
    key, _ = lines.key(sys._getframe())
    line = lines.line(key)
    assert line is not None
    assert line.text is None
    assert line.file == str(HERE)  # outside of the script's folder: as it is


def test_the_generator_behind_its_critic(record: Record) -> None:
    """A graph built in one step is run in the next: its backward keeps the places."""

    def run() -> None:
        maker, critic = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 1)
        of_maker = torch.optim.SGD(maker.parameters(), lr=0.1)
        of_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
        for _ in range(2):
            fake = maker(torch.randn(2, 3))
            of_critic.zero_grad()
            critic(fake.detach()).mean().backward()
            of_critic.step()
            of_maker.zero_grad()
            (-critic(fake).mean()).backward()
            of_maker.step()

    seen = record(run)
    assert len(seen.steps) == 4
    assert paths(seen, "tanh_backward") == ["1", "1"]
    assert texts(seen, "tanh_backward") == ["fake = maker(torch.randn(2, 3))"] * 2


def test_double_backward_keeps_the_place(record: Record) -> None:
    def loss() -> Tensor:
        x = torch.randn(3, requires_grad=True)
        y = x.tanh()
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return slope.square().sum()

    seen = sites_of(record, loss)
    twice = [op for op in seen.ops if op.site.phase is BACKWARD and op.site.source]
    assert "y = x.tanh()" in {op.site.source.text for op in twice if short(op.op) == "mul"}  # type: ignore[union-attr]


EXECUTED = """y = x * 2
def square(x):
    return x.exp()
loss = square(y).sum()
"""


def places(seen: Watched, name: str) -> list[tuple[str, int]]:
    sources = [op.site.source for op in seen.ops if short(op.op) == name]
    return [(s.file, s.line) for s in sources if s is not None]


def test_code_given_to_exec_has_lines_of_its_own(record: Record) -> None:
    def loss() -> Tensor:
        names: dict[str, Any] = {"x": torch.ones(2, requires_grad=True)}
        exec(EXECUTED, names)
        return names["loss"]  # type: ignore[no-any-return]

    seen = sites_of(record, loss)
    assert places(seen, "mul")[0] == ("<string>", 1)
    assert places(seen, "exp") == [("<string>", 3)]
    assert texts(seen, "exp") == [None]


def test_a_method_that_a_library_generates_is_the_line_that_calls_it(record: Record) -> None:
    def loss() -> Tensor:
        made: dict[str, Any] = {}  # as dataclasses makes methods
        exec("def __call__(self, x):\n    return x.exp()", made)
        x = torch.ones(2, requires_grad=True)
        return made["__call__"](None, x).sum()  # type: ignore[no-any-return]

    seen = sites_of(record, loss)
    assert [str(t).partition("  #")[0] for t in texts(seen, "exp")] == [
        'return made["__call__"](None, x).sum()'
    ]


def test_a_file_above_the_scripts_folder_has_no_way_up_and_down_in_its_path(
    tmp_path: Path,
) -> None:
    from fp16doctor.record.source_lines import SourceLines

    lines = SourceLines(str(tmp_path / "scripts"))
    below = str(tmp_path / "scripts" / ".." / "other" / "net.py")
    assert lines.shorten(below) == os.path.realpath(tmp_path / "other" / "net.py")
    assert lines.shorten("<string>") == "<string>"
