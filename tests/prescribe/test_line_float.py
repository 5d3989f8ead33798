"""A kept line in its shortest form: ``.float()`` on what enters it. It does what the trial did."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
import torch
from curing import AUTOCAST, PURE, Job, far
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.prescribe.paste import pasted
from fp16doctor.replay.trial import run_trial
from fp16doctor.schema.policy import KeepRule, PrecisionPolicy

HEAD = """\
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.weight, self.eps = nn.Parameter(torch.ones(8)), 1e-5
    def forward(self, x):
        h = self.inp(x)
"""
TAIL = "\n        return self.head(h.to(self.head.weight.dtype))\n"


def made(path: Path, body: str) -> type[nn.Module]:
    """Return the network with ``body`` in its forward, as a file that has lines."""
    text = HEAD + body + TAIL
    path.write_text(text)
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"__name__": "net"}
    exec(compile(text, str(path), "exec"), names)
    return names["Net"]  # type: ignore[no-any-return]


def loss(model: nn.Module, cast: Any) -> Tensor:
    torch.manual_seed(1)
    return F.cross_entropy(model(cast(torch.randn(6, 4) * 4)).float(), torch.arange(6) % 3)


LINES = {
    "h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight":
    "h = h.float() * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + self.eps) * self.weight",
    "h = (h * h).mean(-1, keepdim=True).rsqrt() * h":
    "h = (h.float() * h.float()).mean(-1, keepdim=True).rsqrt() * h.float()",
    "h = torch.square(h[..., 0:8]).sum(-1, keepdim=True) / 1e3 + h":
    "h = torch.square(h.float()[..., 0:8]).sum(-1, keepdim=True) / 1e3 + h.float()",
    "h = h / (h.pow(2).sum().sqrt() + 1e-12)":
    "h = h.float() / (h.float().pow(2).sum().sqrt() + 1e-12)",
    "h *= (h / 9).exp()": "h = h.float() * (h.float() / 9).exp()",
    "self.kept = h * 0.1; h = self.kept.exp() * h":
    "self.kept = h.float() * 0.1; h = self.kept.exp() * h.float()",
    "h -= h.detach() * 2": "h = h.float() - (h.float().detach() * 2)",
    "h.mul_(h.detach().exp())": "h = h.float().mul(h.float().detach().exp())",
    "h.mul_(h.exp()).div_(2)": None,
    "h = (1 - h) * (self.eps - h.detach())": None,
    "h = (1 - h) * (h - h.detach() * 2)":
    "h = (1 - h.float()) * (h.float() - h.float().detach() * 2)",
    "h.exp_()": "h = h.float().exp()",
    "h.index_add_(0, torch.arange(6), h.detach() * 2)":
    "h = h.float().index_add(0, torch.arange(6), h.float().detach() * 2)",
    "h += (1 - h).exp()": "h = h.float() + (1 - h.float()).exp()",
    "h = torch.log(1 - h.sigmoid() * 0.5 + 1e-10) * (1 - h)":
    "h = torch.log(1 - h.float().sigmoid() * 0.5 + 1e-10) * (1 - h.float())",
    "h = (h.abs() + 1) * (2.0 / (1 - h - 9))":
    "h = (h.float().abs() + 1) * (2.0 / (1 - h.float() - 9))",
    "h[0] *= 2": None,
    "h = (lambda a: a * a)(h)": "h = (lambda a: a.float() * a.float())(h)",
    "if h.dim() > 1: h = h.exp() * h": "if h.dim() > 1: h = h.float().exp() * h.float()",
    "h = self.inp(h[..., :4] * h[..., 4:])": None,
    "h = torch.relu(self.inp.weight).sum() * torch.exp(h)":
    "h = torch.relu(self.inp.weight).sum() * torch.exp(h.float())",
}  # fmt: skip


@pytest.mark.parametrize("form", [AUTOCAST, PURE])
@pytest.mark.parametrize("line", [n for n, new in LINES.items() if new and "relu" not in n])
def test_the_edited_line_does_what_the_trial_did(tmp_path: Path, line: str, form: str) -> None:
    net = made(tmp_path / "net.py", f"        {line}")
    job = Job(net, loss, form)
    (tape,) = job.tapes()
    number = HEAD.count("\n") + 1
    rule = f"line:{tmp_path / 'net.py'}:{number}"
    text = pasted((rule,), "cpu", tape)
    old, new = (next(x for x in text.splitlines() if x[0] == sign) for sign in "-+")
    assert (old, new) == (f"- {line}", f"+ {LINES[line]}")
    edited = job.but(model=made(tmp_path / "edited.py", f"        {new[2:]}"))
    trial = run_trial(tape, PrecisionPolicy("keep", keep=(KeepRule(rule),)))
    real = edited.real()
    assert trial.loss == pytest.approx(real.losses[0], rel=2e-3)
    assert far(trial.gradients, real.gradients) <= 4 * torch.finfo(torch.float16).eps


@pytest.mark.parametrize("line", [n for n, new in LINES.items() if new is None])
def test_what_it_is_not_sure_of_is_left_alone(tmp_path: Path, line: str) -> None:
    (tape,) = Job(made(tmp_path / "net.py", f"        {line}"), loss).tapes()
    text = pasted((f"line:{tmp_path / 'net.py'}:{HEAD.count(chr(10)) + 1}",), "cpu", tape)
    assert ".float()[" not in text
    assert "h.float()" not in text


@pytest.mark.parametrize("line", ["self.seen.index_add_(0, torch.arange(6), h)", "self.seen += h"])
def test_what_writes_into_a_tensor_in_place_is_not_given_a_copy(tmp_path: Path, line: str) -> None:
    """The copy would take the sum, and the tensor would keep what it had."""
    before = "        self.seen = torch.zeros_like(h).detach()\n"
    after = "\n        h = self.seen * 1.0"
    (tape,) = Job(made(tmp_path / "net.py", f"{before}        {line}{after}"), loss, PURE).tapes()
    rule = f"line:{tmp_path / 'net.py'}:{HEAD.count(chr(10)) + 2}"
    text = pasted((rule,), "cpu", tape)
    assert not [x for x in text.splitlines() if x[0] in "+-"]
    assert "what it writes into" in text
