"""Another format from outside gives, bit by bit, what editing the script gives."""

from __future__ import annotations

import pytest
import torch
from apply_running import LOOP, MODEL, ran, same

from fp16doctor.apply.change_dtype import TO_BF16, TO_FP32, other_format

AUTOCAST = (
    MODEL
    + """
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def step_loss(net, x, y):
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
        return F.cross_entropy(out, y)
"""
    + LOOP
)
STORED = (
    MODEL
    + """
net = Net().HALF
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def step_loss(net, x, y):
    mask = torch.ones(6, dtype=torch.float16)
    return F.cross_entropy(net(x.half() * mask).float(), y)
"""
    + LOOP
)
FORMS = ("half()", "to(torch.float16)", "to(dtype=torch.half)", "type(torch.float16)")


def test_autocast_in_bf16() -> None:
    edited = ran(AUTOCAST.replace("float16", "bfloat16"))
    assert same(ran(AUTOCAST, other_format(TO_BF16)), edited)
    assert not same(ran(AUTOCAST), edited)


def test_autocast_in_fp32_is_no_autocast() -> None:
    edited = ran(AUTOCAST.replace("dtype=torch.float16", "enabled=False"))
    assert same(ran(AUTOCAST, other_format(TO_FP32)), edited)


@pytest.mark.parametrize("form", FORMS)
def test_a_stored_half_model_in_bf16(form: str) -> None:
    edited = STORED.replace("x.half()", "x.bfloat16()").replace("torch.float16", "torch.bfloat16")
    got = ran(STORED.replace("HALF", form), other_format(TO_BF16))
    assert same(got, ran(edited.replace("HALF", "bfloat16()")))
    assert got["weights"][0].dtype is torch.bfloat16


def test_a_stored_half_model_in_fp32() -> None:
    edited = STORED.replace("x.half()", "x").replace("torch.float16", "torch.float32")
    got = ran(STORED.replace("HALF", "half()"), other_format(TO_FP32))
    assert same(got, ran(edited.replace("HALF", "float()")))


def test_autocast_set_by_a_call_and_the_default_dtype() -> None:
    text = """
    import torch
    torch.set_autocast_dtype("cpu", torch.float16)
    torch.set_autocast_enabled("cpu", True)
    a = torch.ones(2, 2) @ torch.ones(2, 2)
    torch.set_autocast_enabled("cpu", False)
    torch.set_default_dtype(torch.float16)
    b = torch.ones(2)
    """
    before = torch.get_autocast_dtype("cpu")
    try:
        space = ran(text, other_format(TO_BF16))
    finally:
        torch.set_autocast_dtype("cpu", before)
    assert space["a"].dtype is space["b"].dtype is torch.bfloat16
    assert torch.get_default_dtype() is torch.float32


def test_numpy_halves_and_type_names() -> None:
    text = """
    import numpy, torch
    a = torch.from_numpy(numpy.ones(2, dtype=numpy.float16))
    b = torch.ones(2).type("torch.HalfTensor")
    """
    space = ran(text, other_format(TO_BF16))
    assert space["a"].dtype is space["b"].dtype is torch.bfloat16


def test_nothing_is_left_behind() -> None:
    owner = torch.amp.autocast_mode.autocast
    before = (owner.__init__, torch.set_default_dtype, torch.set_autocast_dtype)
    with pytest.raises(ZeroDivisionError):
        ran("1 / 0", other_format(TO_FP32))
    assert (owner.__init__, torch.set_default_dtype, torch.set_autocast_dtype) == before
    assert torch.ones(1).half().dtype is torch.float16
