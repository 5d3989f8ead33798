"""Another loss scale from outside: in the script's GradScaler, or around its own backward."""

from __future__ import annotations

import pytest
import torch
from apply_running import LOOP, MODEL, ran, same

from fp16doctor.apply.loss_scale import backward_scaled_by, no_scaler, scaler_starts_at
from fp16doctor.errors import ApplyError

BODY = """
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=1e5)
def step_loss(net, x, y):
    with torch.autocast("cpu", dtype=torch.float16):
        return 1e-6 * F.cross_entropy(net(x), y)
"""
PLAIN = MODEL + BODY + LOOP
SCALED = MODEL + BODY + LOOP.replace("    loss.backward()", "    (loss * 1024).backward()").replace(
    "    opt.step()", "    for p in net.parameters():\n        p.grad.div_(1024)\n    opt.step()"
)  # fmt: skip
SCALER = (
    MODEL
    + BODY
    + "scaler = torch.amp.GradScaler('cpu', init_scale=64.0)\n"
    + LOOP.replace("loss.backward()", "scaler.scale(loss).backward()").replace(
        "opt.step()", "scaler.step(opt); scaler.update()"
    )
)


def test_backward_is_scaled_as_by_hand() -> None:
    assert same(ran(PLAIN, backward_scaled_by(1024.0)), ran(SCALED))
    assert not same(ran(PLAIN), ran(SCALED))


def test_a_scale_by_hand_is_changed_on_both_sides() -> None:
    assert same(ran(SCALED, backward_scaled_by(8.0)), ran(SCALED.replace("1024", "8192")))


def test_gradients_add_up_over_several_backwards() -> None:
    twice = PLAIN.replace(
        "    loss.backward()", "    loss.backward(retain_graph=True)\n    loss.backward()"
    )
    by_hand = SCALED.replace(
        "    (loss * 1024)", "    (loss * 1024).backward(retain_graph=True)\n    (loss * 1024)"
    )
    assert same(ran(twice, backward_scaled_by(1024.0)), ran(by_hand))


def test_a_scaler_starts_elsewhere() -> None:
    edited = ran(SCALER.replace("64.0", "4096.0"))
    got = ran(SCALER, scaler_starts_at(4096.0))
    assert same(got, edited)
    assert got["scaler"].get_scale() == 4096.0
    positional = SCALER.replace("'cpu', init_scale=64.0", "'cpu', 64.0")
    assert same(ran(positional, scaler_starts_at(4096.0)), edited)


def test_a_scaler_that_does_nothing() -> None:
    got = ran(SCALER, no_scaler())
    assert same(got, ran(PLAIN))
    assert not got["scaler"].is_enabled()


def test_gradients_in_16_bits_are_refused() -> None:
    stored = PLAIN.replace("Net()", "Net().half()").replace("net(x)", "net(x.half())")
    with pytest.raises(ApplyError, match="stored in 16 bits"):
        ran(stored, backward_scaled_by(2.0))


def test_nothing_is_left_behind() -> None:
    before = (torch.autograd.backward, torch.amp.GradScaler.__init__)
    for patch in (backward_scaled_by(2.0), no_scaler(), scaler_starts_at(2.0)):
        with pytest.raises(ZeroDivisionError):
            ran("1 / 0", patch)
    assert (torch.autograd.backward, torch.amp.GradScaler.__init__) == before
    leaf = torch.ones(1, requires_grad=True)
    with backward_scaled_by(4.0):
        (3 * leaf).backward()
    assert not leaf._backward_hooks
    assert leaf.grad is not None
    assert leaf.grad.item() == 3.0
