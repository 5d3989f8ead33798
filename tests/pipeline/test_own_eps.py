"""Another eps as a diff of the line that makes the optimizer, or of the call that has it."""

from __future__ import annotations

import pytest

from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.pipeline.own_eps import in_call, in_optimizer
from fp16doctor.schema.prescription import Remedy, RemedyKind

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
MODEL = "model = nn.Linear(2, 2).half()\n"


def change(made: str, step: str = "opt.step()", old: str = "1e-08") -> str:
    text = f"{HEAD}{MODEL}{made}\n{step}\n"
    number = text[: text.index(step)].count("\n") + 1
    said = (
        f"# where the optimizer stepped at train.py:{number} is made: pass 0.0001 for what is {old}"
    )
    return in_optimizer(Remedy(RemedyKind.CODE_FIX, "", change=said), Script(text, "train.py"))


@pytest.mark.parametrize(
    ("made", "new"),
    [
        ("opt = torch.optim.Adam(model.parameters(), lr=1e-3)", "lr=1e-3, eps=1e-4)"),
        ("opt = torch.optim.AdamW(model.parameters(), eps=1e-8)", "eps=1e-4)"),
        ("EPS = 1e-8\nopt = torch.optim.Adam(model.parameters(), eps=EPS)", "eps=1e-4)"),
        ("opt = torch.optim.Adam(\n    model.parameters(),\n    lr=1e-3,\n)", "eps=1e-4)"),
    ],
)
def test_the_line_that_makes_the_optimizer_is_changed(made: str, new: str) -> None:
    found = change(made)
    assert found.startswith("--- a/train.py\n")
    assert [x for x in found.splitlines()[3:] if x[0] == "+"][-1].endswith(new)


def test_a_scaler_steps_the_optimizer_that_it_is_given() -> None:
    made = "opt = torch.optim.Adam(model.parameters())\ns = torch.amp.GradScaler('cpu')"
    assert "+opt = torch.optim.Adam(model.parameters(), eps=1e-4)" in change(made, "s.step(opt)")


@pytest.mark.parametrize(
    "made",
    [
        "opt = torch.optim.Adam(model.parameters(), **options)",
        "opt = torch.optim.Adam(model.parameters(), 1e-3, (0.9, 0.99), 1e-8)",
        "opt = torch.optim.Adam(model.parameters(), eps=1e-6)",
        "opt = torch.optim.SGD(model.parameters(), lr=1e-3)",
        "opt = Own(model.parameters())",
    ],
)
def test_where_the_number_is_not_plain_there_is_no_diff(made: str) -> None:
    assert change(made) == ""


def called(line: str, old: str = "1e-12") -> str:
    said = f"# train.py:4: pass 0.0001 for what is {old} in this call"
    remedy = Remedy(RemedyKind.CODE_FIX, "", change=said)
    return in_call(remedy, Script(f"{HEAD}{line}\n", "train.py"))


def test_a_default_of_a_function_is_given() -> None:
    assert "+y = F.normalize(x, dim=-1, eps=1e-4)" in called("y = F.normalize(x, dim=-1)")


@pytest.mark.parametrize(
    "line",
    ["y = F.normalize(x, 2, -1, 1e-12)", "y = F.normalize(x, eps=1e-12)", "y = normalize(x)",
     "y = F.normalize(x) + F.normalize(z)", "y = F.normalize(x, **k)", "y = F.layer_norm(x, n)"],
)  # fmt: skip
def test_in_doubt_no_call_is_changed(line: str) -> None:
    assert called(line) == ""
