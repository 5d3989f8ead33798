"""``scan --confirm`` where no format helps: the script's own line with a guard, and it trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPT = """
import torch
import torch.nn as nn

torch.manual_seed(0)
net = nn.Linear(6, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(8):
    x = torch.randn(6, 5, 6)
    keep = torch.rand(6, 5) < 0.8
    if step == 3:
        keep[1] = False
    with torch.autocast("cpu", dtype=torch.bfloat16):
        s = net(x).squeeze(-1)
    LINE
    loss = (pooled - x[:, 0, 0]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
MEAN = "pooled = (s * keep).sum(1) / keep.sum(1)"
GUARDED = "pooled = (s * keep).sum(1) / keep.sum(1).clamp(min=1)"


def scan(folder: Path, line: str, *options: str) -> tuple[dict[str, Any], str]:
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT).replace("LINE", line))
    done = subprocess.run(
        [sys.executable, "-m", "fp16doctor", "scan", "-o", "d.html", "--json", "d.json", *options,
         "train.py"],
        cwd=folder, capture_output=True, text=True, timeout=110, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1",
             "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    document: dict[str, Any] = json.loads((folder / "d.json").read_text())
    return document, " ".join(done.stderr.split())


def test_the_line_is_told_and_holds(tmp_path: Path) -> None:
    found, said = scan(tmp_path, MEAN, "--confirm")
    (place,) = found["recommendation"]["prescriptions"]
    cure = found["prescriptions"][place]
    assert found["recommendation"]["status"] == "not_precision"
    change = cure["remedy"]["change"].splitlines()
    assert change[:2] == ["--- a/train.py", "+++ b/train.py"]
    edited = [x[0] + x[1:].strip() for x in change[3:] if x[0] != " "]
    assert edited == [f"-{MEAN}", f"+{GUARDED}"]
    assert cure["verification"]["verdict"] == "verified"
    assert cure["verification"]["steps"] == [3]
    assert found["confirm"]["verdict"] == "held", found["confirm"]
    assert f"`{GUARDED}` at train.py:15 (verified by replay of step 3, confirmed" in said
    assert "no format or loss scale changes it" in said
    assert "paste --- a/train.py +++ b/train.py" in said
    assert f"- {MEAN} + {GUARDED}" in said


def test_an_edit_that_no_replay_expresses_is_confirmed_by_the_script(tmp_path: Path) -> None:
    """Two quotients by one tensor: the tape does not tell their backward ops apart."""
    line = "c = keep.sum(1); pooled = (s * keep).sum(1) / c + (~keep).sum(1) / c"
    found, said = scan(tmp_path, line, "--confirm")
    (place,) = found["recommendation"]["prescriptions"]
    cure = found["prescriptions"][place]
    assert cure["remedy"]["change"].count("c.clamp(min=1)") == 2
    assert cure["verification"]["verdict"] == "not_verified"
    assert found["confirm"]["verdict"] == "held", found["confirm"]
    assert "confirmed by the script itself" in said


@pytest.mark.parametrize("options", [("--budget", "0"), ("--no-source",)])
def test_words_where_nothing_may_be_tried_or_shown(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    found, said = scan(tmp_path, MEAN, *options)
    assert all(c["remedy"]["change"] == "" for c in found["prescriptions"])
    assert found["recommendation"]["status"] == "not_precision"
    assert "clamp" in said
    assert "(not verified)" in said
