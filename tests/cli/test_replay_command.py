"""``fp16doctor replay``, as a user calls it on what a scan kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "overflowing.py"
ROOT = Path(__file__).parents[2]
Done = subprocess.CompletedProcess[str]


def doctor(folder: Path, *arguments: str) -> Done:
    return subprocess.run(
        [sys.executable, "-m", "fp16doctor", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    options = ("--budget", "0", "--save-bundle", "a.fp16doctor")
    done = doctor(folder, "scan", *options, str(SCRIPT), "quietly")
    assert done.returncode == 0, done.stderr
    return folder


def test_the_answer_is_on_stdout(folder: Path) -> None:
    done = doctor(folder, "replay", "a.fp16doctor", "--dtype", "bf16")
    assert (done.returncode, done.stderr) == (0, "")
    assert "fidelity  bit-equal to the recording: " in done.stdout
    assert "what if   bf16, against the fp32 replay" in done.stdout
    assert "verdict   " in done.stdout


def test_the_answer_as_json(folder: Path) -> None:
    done = doctor(folder, "replay", "a.fp16doctor", "--loss-scale", "8", "--json", "-")
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert answer["question"]["loss_scale"] == 8
    assert answer["repetition"]["differing"] == 0
    assert answer["verification"]["after"]["loss scale"] == 8
    assert "fidelity" in done.stderr


def test_what_cannot_be_replayed_is_said_in_one_line(folder: Path) -> None:
    (folder / "cut.fp16doctor").write_bytes((folder / "a.fp16doctor").read_bytes()[:-100])
    done = doctor(folder, "replay", "cut.fp16doctor")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("fp16doctor: cannot read a bundle from 'cut.fp16doctor': it ends")
    assert done.stderr.endswith("[truncated-bundle]\n")
    assert done.stderr.count("\n") == 1
    done = doctor(folder, "replay", "a.fp16doctor", "--keep", "module:none")
    assert done.returncode == 2
    assert "[keep-covers-nothing]" in done.stderr
