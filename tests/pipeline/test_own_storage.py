"""fp32 master weights as a diff: the edited script trains fp32 parameters under autocast."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout

import pytest
import torch

from fp16doctor.apply.line_edit import edits_in, patched_text
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.pipeline.own_storage import with_own_masters
from fp16doctor.prescribe.remedies.storage import PARAMETERS
from fp16doctor.schema.prescription import Remedy, RemedyKind

SCRIPT = """\
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self, dtype=None):
        super().__init__()
        self.inp, self.norm = nn.Linear(4, 8, dtype=dtype), nn.RMSNorm(8, dtype=dtype)
        self.out = nn.Linear(8, 3, dtype=dtype)
    def forward(self, x):
        return self.out(self.norm(self.inp(x)))
device = "cpu"
MODEL
opt = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(3):
    x, y = torch.randn(6, 4), torch.arange(6) % 3
LOSS
    opt.zero_grad()
    loss.backward()
    opt.step()
print({str(p.dtype) for p in model.parameters()}, bool(loss.isfinite()))
"""
PLAIN = "    loss = F.cross_entropy(model(x.bfloat16()).float(), y)"
LINES = {
    "model = Net().to(torch.bfloat16)": "model = Net()",
    "model = Net().bfloat16()": "model = Net()",
    "model = Net().to(dtype=torch.bfloat16)": "model = Net()",
    "model = Net().to(device, torch.bfloat16)": "model = Net().to(device)",
    "model = Net().to(device=device, dtype=torch.bfloat16)": "model = Net().to(device=device)",
    "model = Net()\nmodel = model.bfloat16()": "model = Net()",
    "model = Net()\nmodel.bfloat16()": "model = Net()",
    "dtype = torch.bfloat16\nmodel = Net().to(dtype)": "dtype = torch.bfloat16\nmodel = Net()",
    "model = Net(dtype=torch.bfloat16)": "model = Net(dtype=torch.float32)",
    "torch.set_default_dtype(torch.bfloat16)\nmodel = Net()": "model = Net()",
}


def edited(text: str) -> str:
    """The script with the diff; "" where there is none."""
    change = PARAMETERS[1].replace("DEVICE", "'cpu'").replace("FORMAT", "bfloat16")
    remedy = Remedy(RemedyKind.STORAGE, PARAMETERS[0], change=change)
    found = with_own_masters(remedy, Script(text, "train.py"))
    return (patched_text(text, edits_in(found)) or "") if found else ""


@pytest.fixture(autouse=True)
def _default_dtype() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


def run(text: str) -> str:
    """What a script prints at its end."""
    torch.set_default_dtype(torch.float32)
    with redirect_stdout(io.StringIO()) as said:
        exec(compile(text, "train.py", "exec"), {"__name__": "train"})
    return said.getvalue().strip()


@pytest.mark.parametrize("model", list(LINES))
def test_the_edited_script_trains_fp32_parameters(model: str) -> None:
    text = SCRIPT.replace("MODEL", model).replace("LOSS", PLAIN)
    assert run(text) == "{'torch.bfloat16'} True"
    new = edited(text)
    assert f"\n{LINES[model]}\nopt = " in new
    assert (
        "    with torch.autocast('cpu', dtype=torch.bfloat16):\n"
        "        loss = F.cross_entropy(model(x).float(), y)\n" in new
    )
    assert run(new) == "{'torch.float32'} True"


def test_the_block_begins_at_the_model_and_ends_at_the_loss() -> None:
    lines = (
        "    h = x.bfloat16()\n    z = model(h)\n    loss = F.cross_entropy(\n        z.float(), y)"
    )
    new = edited(SCRIPT.replace("MODEL", "model = Net().bfloat16()").replace("LOSS", lines))
    assert "    h = x\n    with torch.autocast(" in new
    assert (
        "        z = model(h)\n        loss = F.cross_entropy(\n            z.float(), y)\n" in new
    )
    assert run(new) == "{'torch.float32'} True"


def test_where_autocast_is_on_already_the_cast_alone_goes() -> None:
    lines = (
        "    with torch.autocast('cpu', dtype=torch.bfloat16):\n"
        "        loss = F.cross_entropy(model(x).float(), y)"
    )
    text = SCRIPT.replace("MODEL", "model = Net().bfloat16()").replace("LOSS", lines)
    new = edited(text)
    assert new == text.replace("Net().bfloat16()", "Net()")
    assert run(new) == "{'torch.float32'} True"


@pytest.mark.parametrize(
    ("model", "lines"),
    [
        ("model = Net().bfloat16()\nkept = torch.zeros(3).bfloat16()", PLAIN),
        ("model = Net().to(getattr(torch, 'bfloat16'))", PLAIN),
        ("model = Net().bfloat16()", "    if step: loss = F.cross_entropy(model(x).float(), y)"),
        ("model = Net().bfloat16()", PLAIN + "\n    loss.sum().backward(retain_graph=True)"),
        ("model = Net().bfloat16()", "    loss = F.cross_entropy(model(x).float(), y, '''\n''')"),
    ],
    ids=["another half tensor", "an unknown cast", "a branch", "two backwards", "a long text"],
)  # fmt: skip
def test_in_doubt_nothing_is_edited(model: str, lines: str) -> None:
    assert edited(SCRIPT.replace("MODEL", model).replace("LOSS", lines)) == ""
