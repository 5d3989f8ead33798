"""Kept functions, lines and ops of a running script."""

from __future__ import annotations

import torch
from apply_running import LOOP, MODEL, FileLines, line_of, ran, same

from fp16doctor.apply.keep_places import KeptOps, KeptPlaces
from fp16doctor.schema.policy import KeepRule

SCRIPT = (
    MODEL
    + """
def energy(h):
    e = h * h
    return e.sum(-1)

net = Net().half()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def step_loss(net, x, y):
    out = net(x.half())
    e = energy(out * 100)
    p = torch.sigmoid(out)
    return F.cross_entropy((p + out).float(), y) + 1e-6 * e.float().mean()
"""
    + LOOP
)


def places(*patterns: str) -> KeptPlaces:
    return KeptPlaces(tuple(map(KeepRule, patterns)), FileLines("train.py"))


def test_a_function_is_kept() -> None:
    edited = SCRIPT.replace("energy(out * 100)", "energy((out * 100).float())")
    kept = places("function:train.py:energy")
    assert same(ran(SCRIPT, kept), ran(edited))
    assert kept.applied == {"function:train.py:energy"}
    assert not same(ran(SCRIPT), ran(edited))


def test_a_line_is_kept_and_what_leaves_it_flows_on() -> None:
    edited = SCRIPT.replace("e = h * h", "w = h.float(); e = w * w")
    assert same(ran(SCRIPT, places(f"line:train.py:{line_of(SCRIPT, 'e = h * h')}")), ran(edited))


def test_an_op_is_kept_wherever_it_stands() -> None:
    edited = SCRIPT.replace("torch.sigmoid(out)", "torch.sigmoid(out.float())")
    kept = KeptOps((KeepRule("op:aten.sigmoid"),))
    assert same(ran(SCRIPT, kept), ran(edited))
    assert kept.applied == {"op:aten.sigmoid"}


def test_a_kept_line_under_autocast_has_none() -> None:
    text = """
    import torch
    a = torch.randn(3, 3)
    with torch.autocast("cpu", dtype=torch.float16):
        b = a @ a  # kept
        c = a @ a
    """
    space = ran(text, places(f"line:train.py:{line_of(text, 'kept')}"))
    assert space["b"].dtype is torch.float32
    assert torch.equal(space["b"], space["a"] @ space["a"])
    assert space["c"].dtype is torch.float16


def test_formats_are_reconciled_as_the_next_16_bit_op_does() -> None:
    text = """
    import torch
    w = torch.ones(2, 2, dtype=torch.float16)
    wide = torch.full((2, 2), 1.0001)
    y = wide @ w
    w[0] = 3 * wide[0]
    w[torch.tensor([1])] = wide[1:]
    """
    space = ran(text, places())
    assert space["y"].dtype is torch.float16
    assert space["w"].tolist() == [[3.0, 3.0], [1.0, 1.0]]


def test_what_a_kept_line_writes_in_place_is_stored_in_fp32() -> None:
    text = """
    import torch
    total = torch.zeros(1, dtype=torch.float16)
    for _ in range(5000):
        total.add_(torch.ones(1, dtype=torch.float16))
    """
    assert ran(text)["total"].item() == 2048.0
    kept = ran(text, places(f"line:train.py:{line_of(text, 'add_')}"))["total"]
    assert kept.dtype is torch.float32
    assert kept.item() == 5000.0


def test_a_refusal_of_another_kind_is_the_scripts_own() -> None:
    text = """
    import torch
    try:
        torch.ones(2, 3) @ torch.ones(2, 3, dtype=torch.float16).float()
    except RuntimeError as error:
        said = str(error)
    """
    assert "shapes" in ran(text, places())["said"]


def test_a_line_is_not_the_modules_of_torch_that_it_calls() -> None:
    text = """
    import torch
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Linear(2, 2)
        def forward(self, x):
            self.before = self.conv(x)
            y = torch.sigmoid(self.conv(x))  # kept
            return y
    net = Net().half()
    y = net(torch.ones(2).half())
    loss = torch.nn.L1Loss()(y.half(), y.half())  # lost
    """
    line = f"line:train.py:{line_of(text, 'kept')}"
    space = ran(text, places(line, f"line:train.py:{line_of(text, 'lost')}"))
    assert torch.equal(space["y"], torch.sigmoid(space["net"].before.float()))
    assert space["loss"].dtype is torch.float32
