"""``scan --confirm`` in a process: the script itself under the cure, and what it leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
OVERFLOWING = """
import argparse, sys
import torch
import torch.nn as nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.wide, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        nn.init.constant_(self.wide.weight, 3e4)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        h = torch.sigmoid(self.inp(x))
        return self.out(self.norm(self.wide(h)))

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()
torch.manual_seed(0)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
with open("log.txt", "a") as log:
    log.write("started\\n")
for step in range(args.steps):
    x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step", step)
torch.save(net.state_dict(), "model.pt")
"""


@dataclass
class Scanned:
    status: int
    stdout: str
    stderr: str
    document: dict[str, Any]
    folder: Path

    @property
    def confirm(self) -> dict[str, Any]:
        found: dict[str, Any] = self.document["confirm"]
        return found


def scan(folder: Path, text: str, *arguments: str, options: tuple[str, ...] = ()) -> Scanned:
    work = folder / "work"
    work.mkdir()
    (work / "train.py").write_text(textwrap.dedent(text))
    outputs = ("-o", str(folder / "d.html"), "--json", str(folder / "d.json"))
    done = subprocess.run(
        [sys.executable, "-m", "fp16doctor", "scan", "--confirm", *outputs, *options, "train.py",
         *arguments],
        cwd=work, capture_output=True, text=True, timeout=110, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1",
             "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    document = json.loads((folder / "d.json").read_text())
    return Scanned(done.returncode, done.stdout, done.stderr, document, work)


def test_a_cure_that_holds(tmp_path: Path) -> None:
    got = scan(tmp_path, OVERFLOWING, "--steps", "4")
    assert got.status == 0, got.stderr
    assert got.confirm["verdict"] == "held", got.confirm
    assert got.confirm["steps"] == 4
    assert got.confirm["after"]["steps with a finite loss"] == 4.0
    assert got.confirm["before"]["steps with a finite loss"] == 0.0
    assert got.stdout.count("step 3") == 1  # the second run's output is not the script's
    assert "confirmed: the script itself under the cure: 4 of 4 steps finite" in " ".join(
        got.stderr.split()
    )
    assert "confirmed: the script itself" in (tmp_path / "d.html").read_text()
    assert (got.folder / "log.txt").read_text() == "started\n"  # one run's
    assert {p.name for p in got.folder.iterdir()} == {"train.py", "log.txt", "model.pt"}
    assert got.confirm["redirected"] == ["log.txt", "model.pt"]


def test_the_child_leaves_nothing_replaced(tmp_path: Path) -> None:
    got = scan(tmp_path, OVERFLOWING)
    (tmp_path / "store").mkdir()
    command = ["confirm-run", "../d.json", "after.json", "../store", "train.py", "--steps", "2"]
    subprocess.run(
        [sys.executable, "-m", "fp16doctor", *command],
        cwd=got.folder, capture_output=True, timeout=110, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (got.folder / "after.json").exists()  # its own file is not redirected
    assert sorted(p.name for p in (tmp_path / "store").iterdir()) == ["log.txt", "model.pt"]


def test_a_script_that_ends_otherwise_under_the_cure(tmp_path: Path) -> None:
    hostile = OVERFLOWING + "if loss.isfinite():\n    raise ValueError('too good')\n"
    got = scan(tmp_path, hostile)
    assert got.status == 0
    assert got.confirm["verdict"] == "not_held"
    assert "ValueError: too good" in got.confirm["reason"]
    assert (
        "not confirmed: the script ends with ValueError"
        in (got.document["recommendation"]["sentence"])
    )


def test_a_script_that_raises_for_its_fault(tmp_path: Path) -> None:
    hostile = OVERFLOWING.replace(
        "    opt.zero_grad()", "    assert loss.isfinite(), 'diverged'\n    opt.zero_grad()"
    )
    got = scan(tmp_path, hostile)
    assert got.status == 1
    assert got.document["run"]["outcome"]["kind"] == "raised"
    if got.document["confirm"] is not None:  # a step without a backward may leave no cure
        assert got.confirm["verdict"] == "held", got.confirm


def test_a_script_that_exits_with_a_status(tmp_path: Path) -> None:
    got = scan(tmp_path, OVERFLOWING + "sys.exit(3)\n")
    assert got.status == 3
    assert got.confirm["verdict"] == "held", got.confirm


def test_steps_are_passed_on(tmp_path: Path) -> None:
    got = scan(tmp_path, OVERFLOWING, "--steps", "50", options=("--steps", "3"))
    assert got.confirm["verdict"] == "held", got.confirm
    assert got.confirm["steps"] == 3


def test_nothing_to_confirm(tmp_path: Path) -> None:
    got = scan(tmp_path, "print('no training here')\n")
    assert got.document["confirm"] is None
    assert "runs again" not in got.stderr


def test_a_script_that_can_be_read_once_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "train.py"
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    os.mkfifo(pipe)
    done = subprocess.run(
        [sys.executable, "-m", "fp16doctor", "scan", "--confirm", str(pipe)],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 2
    assert "can be read only once" in done.stderr
    assert "[not-repeatable]" in done.stderr
