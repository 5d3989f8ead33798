"""A line that casts to 16 bits what they cannot hold: the line without the cast cures it."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
import torch
from curing import PURE, Job
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.prescribe.paste import pasted
from fp16doctor.prescribe.uncast import without_cast
from fp16doctor.replay.trial import run_trial
from fp16doctor.schema.policy import KeepRule, PrecisionPolicy

HEAD = """\
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
    def forward(self, x):
        p = x.float() * 1e4
"""
TAIL = """
        p = torch.log1p(p.abs())
        return self.head(p.to(self.head.weight.dtype))
"""


@pytest.mark.parametrize(
    ("line", "new"),
    [
        ("return p.half()", "return p"),
        ("return (p * 2).to(self.w.dtype)", "return (p * 2)"),
        ("h = f(x.float()).to(dtype=torch.bfloat16)", "h = f(x.float())"),
        ("h = 3 * (p + 2).half()", "h = 3 * (p + 2)"),
        ("h = p.to(device)", None),
        ("h = p.to(x.device, torch.half)", None),
        ("h = p.to('cuda')", None),
        ("h = p.half() + q.half()", None),
        ("h = p.view(2)", None),
    ],
)
def test_the_line_without_its_only_cast(line: str, new: str | None) -> None:
    assert without_cast(line) == new


def net(path: Path, line: str) -> type[nn.Module]:
    text = f"{HEAD}        {line}{TAIL}"
    path.write_text(text)
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"__name__": "net"}
    exec(compile(text, str(path), "exec"), names)
    return names["Net"]  # type: ignore[no-any-return]


def loss(model: nn.Module, cast: Any) -> Tensor:
    torch.manual_seed(1)
    return F.cross_entropy(model(cast(torch.randn(6, 4) * 9)).float(), torch.arange(6) % 3)


def test_the_edit_of_a_cast_that_overflows_is_its_removal(tmp_path: Path) -> None:
    job = Job(net(tmp_path / "net.py", "p = p.to(x.dtype)"), loss, PURE)
    (tape,) = job.tapes()
    rule = f"line:{tmp_path / 'net.py'}:{HEAD.count(chr(10)) + 1}"
    trial = run_trial(tape, PrecisionPolicy("keep", keep=(KeepRule(rule),)))
    old, new = (x for x in pasted((rule,), "cpu", tape).splitlines() if x[0] in "+-")
    assert (old, new) == ("- p = p.to(x.dtype)", "+ p = p")
    cured = job.but(model=net(tmp_path / "edited.py", new[2:])).real().losses[0]
    assert not torch.tensor(job.real().losses[0]).isfinite()
    assert trial.loss == pytest.approx(cured, rel=2e-3)


MASKED = """\
        masked = (x > 0).to(x.dtype) * torch.finfo(x.dtype).min
        p = torch.exp(masked - x.abs() * 30).to(x.dtype) + x
"""


def test_a_mask_that_the_line_makes_of_booleans_is_made_in_fp32(tmp_path: Path) -> None:
    body = MASKED.strip()
    (tape,) = Job(net(tmp_path / "net.py", body), loss, PURE).tapes()
    rule = f"line:{tmp_path / 'net.py'}:{HEAD.count(chr(10)) + 1}"
    _, old, new = pasted((rule,), "cpu", tape).splitlines()[:3]
    assert old == "- masked = (x > 0).to(x.dtype) * torch.finfo(x.dtype).min"
    assert new == "+ masked = (x > 0).float() * torch.finfo(x.dtype).min"
    trial = run_trial(tape, PrecisionPolicy("keep", keep=(KeepRule(rule),)))
    edited = Job(net(tmp_path / "edited.py", body.replace(old[2:], new[2:])), loss, PURE)
    assert trial.loss == pytest.approx(edited.real().losses[0], rel=2e-3)


def test_words_where_the_cast_is_not_known(tmp_path: Path) -> None:
    job = Job(net(tmp_path / "net.py", "p = p.to(x.dtype).to(x.dtype)"), loss, PURE)
    (tape,) = job.tapes()
    rule = f"line:{tmp_path / 'net.py'}:{HEAD.count(chr(10)) + 1}"
    assert "leave out the cast to 16 bits" in pasted((rule,), "cpu", tape)
