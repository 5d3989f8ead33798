"""What cannot be kept is refused with the reason, and nothing is changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import torch
from residual_nets import ResNet, images
from torch import Tensor, nn

import fp16doctor
from fp16doctor.apply.keep_fp32 import keep_fp32
from fp16doctor.errors import ApplyError, FixupError


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).half()


def plain(x: Tensor) -> Tensor:
    return x @ x.t()


def yields(x: Tensor) -> Iterator[Tensor]:
    yield x @ x.t()


async def awaits(x: Tensor) -> Tensor:
    return x @ x.t()


async def both(x: Tensor) -> AsyncIterator[Tensor]:
    yield x @ x.t()


@pytest.mark.parametrize(
    ("target", "more", "slug"),
    [
        (nn.Linear, {"patterns": ["x"]}, "not-a-model"),
        (nn.Linear, {}, "not-a-model"),
        (3, {}, "not-a-model"),
        ("model", {"patterns": ["1"]}, "not-a-model"),
        (None, {"patterns": ["1"]}, "not-a-model"),
        (plain, {"patterns": ["1"]}, "not-a-model"),
        (plain, {"outputs": torch.float16}, "not-a-model"),
        (yields, {}, "leaves-its-block"),
        (awaits, {}, "leaves-its-block"),
        (both, {}, "leaves-its-block"),
    ],
)
def test_what_is_neither_a_model_nor_a_function(
    target: Any, more: dict[str, Any], slug: str
) -> None:
    with pytest.raises(ApplyError, match=slug):
        keep_fp32(target, **more)


@pytest.mark.parametrize(
    ("patterns", "outputs", "slug"),
    [
        (1, None, "not-a-pattern"),
        ([1], None, "not-a-pattern"),
        (["1", b"0"], None, "not-a-pattern"),
        (["1"], torch.int8, "not-a-format"),
        (["1"], torch.complex64, "not-a-format"),
        (["1"], "bf16", "not-a-format"),
    ],
)
def test_arguments_that_are_none(patterns: Any, outputs: Any, slug: str) -> None:
    model = net()
    with pytest.raises(ApplyError, match=slug):
        keep_fp32(model, patterns, outputs=outputs)
    assert {p.dtype for p in model.parameters()} == {torch.float16}


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Iterator[Tensor]:
        for _ in range(2):
            yield self.layer(x)


def test_a_forward_that_goes_on_after_it_has_returned() -> None:
    model = nn.Sequential(Parts())
    with pytest.raises(ApplyError, match=r"the forward of '0'.*leaves-its-block"):
        keep_fp32(model, ["0"])
    with torch.autocast("cpu", torch.bfloat16):
        kept = [y.dtype for y in keep_fp32(model, ["0.layer"])[0](torch.ones(1, 4))]
    assert kept == [torch.float32] * 2


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_a_script_module_is_refused_and_others_beside_it_are_kept() -> None:
    scripted = torch.jit.script(nn.Linear(4, 4).half())
    with pytest.raises(ApplyError, match="script-module"):
        keep_fp32(torch.jit.script(net()), ["1"])
    model = nn.Sequential(scripted, nn.Linear(4, 3).half())
    with pytest.raises(ApplyError, match=r"'0' was to be kept.*script-module"):
        keep_fp32(model, ["0"])
    assert keep_fp32(model, ["1"])(torch.ones(2, 4).half()).dtype is torch.float32


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize("make", [lambda: ResNet, lambda: 3, lambda: torch.jit.trace(
    ResNet(2), images())])  # fmt: skip
def test_fixup_of_what_cannot_be_followed(make: Any) -> None:
    with pytest.raises(FixupError, match="not-a-model"):
        fp16doctor.fixup_(make(), images())
