"""``scan -q``: what went wrong is said in one line, whenever it shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[1] / "scripts"
ROOT = Path(__file__).parents[2]
# bf16 weights that take no update of this size: every loss is finite.
STUCK = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 4).bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(16, 8).bfloat16()).float().pow(2).mean().backward()
    optimizer.step()
"""


def quiet_scan(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fp16doctor", "scan", "-q", "--budget", "0", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return done.stderr


def test_what_was_said_while_the_script_ran_is_not_said_again(tmp_path: Path) -> None:
    told = quiet_scan(tmp_path, str(SCRIPTS / "overflowing.py"), "quietly")
    (line,) = [s for s in told.splitlines() if s.startswith("fp16doctor: ")]
    assert line.startswith("fp16doctor: error FD101 activation-overflow: ")
    assert "verdict" not in told


def test_what_shows_at_the_end_only_is_said_then(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK, encoding="utf-8")
    told = quiet_scan(tmp_path, "stuck.py")
    text = (tmp_path / "fp16doctor-stuck.json").read_text(encoding="utf-8")
    finding = json.loads(text)["findings"][0]
    assert finding["severity"] in ("error", "warning")
    head = f"{finding['severity']} {finding['code']} {finding['name']}: {finding['what']}"
    assert told == f"fp16doctor: {head}\n"
