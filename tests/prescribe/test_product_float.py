"""Lines with matrix products, edited into fp32: the edit computes what the trial did."""

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
from torch.nn import functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(4, 8)
        self.weight, self.bias = nn.Parameter(torch.eye(8) + 0.5), nn.Parameter(torch.ones(8))
        self.none, self.scale = None, 0.25
    def own(self, x):
        return x @ x.t()
    def forward(self, x):
        h = self.inp(x)
        q, k = h.view(2, 3, 8), h.view(2, 3, 8).flip(-1)
        self.kept = k * 0.5
"""
TAIL = "\n        return h.float().reshape(-1)[:18].view(6, 3)\n"
OFF = "with torch.autocast('cpu', enabled=False):"
LINES = {
    "h = (q.transpose(-2, -1) @ k) * self.scale":
    "h = (q.float().transpose(-2, -1) @ k.float()) * self.scale",
    "h = (q @ k.mT).softmax(-1) @ (k * 2)":
    "h = (q.float() @ k.float().mT).softmax(-1) @ (k.float() * 2)",
    "h = torch.einsum('bid,bjd->bij', q, k) @ k.exp()":
    "h = torch.einsum('bid,bjd->bij', q.float(), k.float()) @ k.float().exp()",
    "h = (q @ k.mT) @ self.kept.view(2, 3, 8).exp()": None,  # exp in fp32 by autocast
    "h = torch.einsum('bid,bje->bde', q, k[:, :3])": None,  # it sums over i and j beforehand
    "h = torch.einsum('bid,bie->bde', q, k[..., :3])":
    "h = torch.einsum('bid,bie->bde', q.float(), k.float()[..., :3])",
    "h = h @ self.weight + h": "h = h.float() @ self.weight.float() + h.float()",
    "h = F.linear(h, self.weight, self.bias)":
    "h = F.linear(h.float(), self.weight.float(), self.bias.float())",
    "h = F.linear(h, self.weight, None)": "h = F.linear(h.float(), self.weight.float(), None)",
    "h = F.linear(h, self.weight, self.none)": None,
    "h = torch.baddbmm(q.mT @ k, q.mT, k)":
    "h = torch.baddbmm(q.float().mT @ k.float(), q.float().mT, k.float())",
    "h = q.transpose(1, 2).matmul(k.contiguous())":
    "h = q.float().transpose(1, 2).matmul(k.float().contiguous())",
    "h = self.own(h) @ h": None,
    "h = self.inp(h @ self.weight[:, :4])": None,
    "h = torch.stack([a @ self.weight for a in q])": None,
}  # fmt: skip


def made(path: Path, body: str) -> type[nn.Module]:
    text = HEAD + body + TAIL
    path.write_text(text)
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"__name__": "net"}
    exec(compile(text, str(path), "exec"), names)
    return names["Net"]  # type: ignore[no-any-return]


def loss(model: nn.Module, cast: Any) -> Tensor:
    torch.manual_seed(1)
    return F.cross_entropy(model(cast(torch.randn(6, 4))).float(), torch.arange(6) % 3)


def rule_of(path: Path) -> str:
    return f"line:{path / 'net.py'}:{HEAD.count(chr(10)) + 1}"


@pytest.mark.parametrize("form", [AUTOCAST, PURE])
@pytest.mark.parametrize("line", [n for n, new in LINES.items() if new])
def test_the_edited_line_does_what_the_trial_did(tmp_path: Path, line: str, form: str) -> None:
    job = Job(made(tmp_path / "net.py", f"        {line}"), loss, form)
    (tape,) = job.tapes()
    text = pasted((rule_of(tmp_path),), "cpu", tape).splitlines()
    assert text[1:] == [f"- {line}", f"+ {OFF}", f"+     {LINES[line]}"]
    body = "\n".join(f"        {x[2:]}" for x in text[2:])
    real = job.but(model=made(tmp_path / "edited.py", body)).real()
    keep = PrecisionPolicy("keep", keep=(KeepRule(rule_of(tmp_path)),))
    trial, as_run = run_trial(tape, keep), run_trial(tape, PrecisionPolicy("as_run"))
    assert trial.loss == pytest.approx(real.losses[0], rel=1e-6)
    assert far(trial.gradients, real.gradients) <= torch.finfo(torch.float16).eps
    assert trial.loss != as_run.loss


@pytest.mark.parametrize("line", [n for n, new in LINES.items() if new is None])
def test_what_it_is_not_sure_of_is_left_alone(tmp_path: Path, line: str) -> None:
    (tape,) = Job(made(tmp_path / "net.py", f"        {line}"), loss, AUTOCAST).tapes()
    text = pasted((rule_of(tmp_path),), "cpu", tape)
    assert "q.float()" not in text
    assert "h.float()" not in text
