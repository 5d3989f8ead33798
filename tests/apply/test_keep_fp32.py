"""A kept module: inputs up, no autocast inside, fp32 inside and out; it is saved and copied."""

from __future__ import annotations

import copy
import io
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from apply_running import LOOP, MODEL, ran, same
from torch import nn

import fp16doctor
from fp16doctor.apply.keep_fp32 import keep_fp32
from fp16doctor.errors import ApplyError

KEPT = "keep_fp32(net, ['mid'])"
TRAINED = (
    MODEL
    + """
from fp16doctor import keep_fp32
KEPT_HERE
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def step_loss(net, x, y):
    LOSS
"""
    + LOOP
)
AUTOCAST = (
    TRAINED.replace("KEPT_HERE", "net = Net()\nKEPT")
    .replace("LOSS", """with torch.autocast("cpu", dtype=torch.float16):
        return F.cross_entropy(net(x), y)""")
)  # fmt: skip
STORED = TRAINED.replace("KEPT_HERE", "net = Net().half()\nKEPT").replace(
    "LOSS", "return F.cross_entropy(net(x.half()).float(), y)"
)


def test_under_autocast_it_does_what_an_edit_of_forward_does() -> None:
    hand = AUTOCAST.replace("KEPT", "").replace(
        "self.mid(torch.tanh(self.inp(x)))", "self.wide(torch.tanh(self.inp(x)))"
    )
    hand = hand.replace(
        "    def forward(self, x):",
        """    def wide(self, h):
        with torch.autocast("cpu", enabled=False):
            return self.mid(h.float())

    def forward(self, x):""",
    )
    assert same(ran(AUTOCAST.replace("KEPT", KEPT)), ran(hand))


def test_in_a_model_of_16_bits_the_next_module_casts() -> None:
    hand = STORED.replace("KEPT", "net.mid.float()").replace(
        "self.out(torch.tanh(self.mid(torch.tanh(self.inp(x)))))",
        "self.out(torch.tanh(self.mid(torch.tanh(self.inp(x)).float())).half())",
    )
    got = ran(STORED.replace("KEPT", KEPT))
    assert same(got, ran(hand))
    assert {p.dtype for p in got["net"].mid.parameters()} == {torch.float32}


class Recording(nn.Module):
    """Notes what it is given; returns it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float16))

    def forward(self, *args: object, **kwargs: object) -> object:
        self.given = (args, kwargs)
        self.autocast = torch.is_autocast_enabled("cpu")
        return args[0]


@dataclass
class Batch:
    x: torch.Tensor
    n: int


Pair = namedtuple("Pair", "a b")


def test_inputs_of_every_shape_are_cast_up_and_others_stay() -> None:
    half, ids = torch.ones(2, dtype=torch.bfloat16), torch.arange(2)
    model = keep_fp32(nn.Sequential(Recording()), ["0"])
    kept: Recording = model[0]  # type: ignore[assignment]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kept([half, ids], Pair(half, 1), batch=Batch(half, 3), more={"k": (half,)})
    (items, pair), kwargs = kept.given
    assert items[0].dtype is torch.float32
    assert items[1] is ids
    assert isinstance(pair, Pair)
    assert pair.a.dtype is kwargs["batch"].x.dtype is kwargs["more"]["k"][0].dtype is torch.float32
    assert kwargs["batch"].n == 3
    assert not kept.autocast


def test_it_is_copied_saved_and_loaded_with_the_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).half()
    names = list(model.state_dict())
    keep_fp32(model, ["0"])
    x = torch.randn(2, 3).half()
    expected = model(x)
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    loaded, twin = torch.load(stream, weights_only=False), copy.deepcopy(model)
    for other in (loaded, twin):
        assert torch.equal(other(x), expected)
    with torch.no_grad():
        twin[0].weight.zero_()
    assert not torch.equal(twin(x), expected)  # its own weights, not those of the original
    assert torch.equal(model(x), expected)
    assert list(model.state_dict()) == names


def test_twice_is_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).half()
    keep_fp32(keep_fp32(model, ["0"]), ["0"])
    forward = model[0].__dict__["forward"]
    assert forward.replaced is None
    assert len(model[1]._forward_pre_hooks) == 1


def test_a_function_and_a_block() -> None:
    def square_sum(x: torch.Tensor) -> torch.Tensor:
        return (x * x).sum().to(torch.float16)  # inside, 16 bits are fp32

    x = torch.full((4,), 300.0, dtype=torch.float16)
    assert torch.isinf(square_sum(x))
    assert keep_fp32(square_sum)(x).item() == 360000.0
    with fp16doctor.keep_fp32():
        assert square_sum(x).item() == 360000.0
    assert torch.isinf(square_sum(x))


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(ApplyError, match=r"'mod'.*no-such-module"):
        keep_fp32(nn.Sequential(nn.Linear(2, 2)), ["mod"])
