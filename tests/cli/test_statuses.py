"""Exit statuses: one table over all commands, and what their help says of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from fp16doctor.cli import statuses
from fp16doctor.cli.main import _COMMANDS, _status, fp16doctor
from fp16doctor.schema.finding import Severity

SAMPLES = Path(__file__).parents[1] / "samples"
CLIPPED = """\
import torch
scaler = torch.amp.GradScaler("cuda")
for x in data:
    scaler.scale(model(x)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
REPEATED = ("report", "compare", "replay", "repro", "weights")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one file of every kind, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("overflow", "healthy", "never-trained"):
        (tmp_path / f"{name}.json").write_bytes((SAMPLES / f"v1-{name}.json").read_bytes())
    (tmp_path / "cut.json").write_bytes((SAMPLES / "v1-overflow.json").read_bytes()[:900])
    (tmp_path / "junk").write_text("junk")
    (tmp_path / "sub").mkdir()
    (tmp_path / "clipped.py").write_text(CLIPPED)
    (tmp_path / "half.py").write_text("import torch\ndef :\n")
    torch.save({"w": torch.tensor([1.0, 1e5])}, tmp_path / "large.pt")
    torch.save({"w": torch.tensor([1.0, 1e-6])}, tmp_path / "small.pt")
    torch.save({"w": torch.ones(2)}, tmp_path / "fine.pt")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("--help", 0),
        ("--version", 0),
        ("nosuch", 2),
        *((f"{name} --help", 0) for name in _COMMANDS),
        *((f"{name} --nosuch", 2) for name in _COMMANDS),
        # A file named on the command line that is not there, or is a folder.
        *((f"{name} missing" + " missing" * (name == "compare"), 2) for name in REPEATED),
        *((f"{name} sub" + " sub" * (name == "compare"), 2) for name in REPEATED[:-1]),
        ("weights sub", 4),  # a folder may hold a checkpoint; this one does not
        ("lint missing.py", 2),
        ("scan missing.py", 2),
        # A place that cannot be written to.
        ("report overflow.json -o none/x.html", 2),
        ("report overflow.json -o sub", 2),
        ("report overflow.json -o overflow.json", 2),
        ("report overflow.json -o - --format json", 2),
        ("replay junk --json none/x.json", 2),
        ("repro junk -o none/x.py", 2),
        ("scan -o none/x.html clipped.py", 2),
        ("scan -o - --format github clipped.py", 2),
        # Nothing named at all, or something that is not known.
        *((name, 2) for name in (*REPEATED, "lint", "scan")),
        ("explain FD000", 2),
        ("explain FD101", 0),
        ("repro overflow.json", 2),
        ("weights fine.pt --to fp17", 2),
        # A file that is there and cannot be read.
        ("report cut.json", 4),
        ("compare overflow.json cut.json", 4),
        ("replay junk", 4),
        ("repro junk", 4),
        ("weights junk", 4),
        # --fail-on, with the same default everywhere.
        ("report overflow.json", 0),
        ("report overflow.json --fail-on error", 3),
        ("report overflow.json --fail-on warning", 3),
        ("report healthy.json --fail-on warning", 0),
        ("report never-trained.json", 0),
        ("report never-trained.json --fail-on error", 3),
        ("compare healthy.json overflow.json", 0),
        ("compare healthy.json overflow.json --fail-on error", 3),
        ("compare overflow.json overflow.json --fail-on warning", 0),
        ("compare overflow.json never-trained.json --fail-on error", 3),
        ("lint clipped.py", 0),
        ("lint clipped.py --fail-on error", 3),
        ("lint half.py", 0),
        ("lint half.py --fail-on error", 3),
        ("weights large.pt --to fp16", 0),
        ("weights large.pt --to fp16 --fail-on error", 3),
        ("weights large.pt --to bf16 --fail-on warning", 0),
        ("weights small.pt --to fp16 --fail-on error", 0),
        ("weights small.pt --to fp16 --fail-on warning", 3),
        ("weights fine.pt --fail-on warning", 0),
    ],
)
def test_status(
    command: str, status: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _status(command.split()) == status
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert "internal-error" not in said.err
    if status in (2, 4):
        assert said.out == ""
        assert said.err


@pytest.mark.parametrize(
    ("script", "options", "status"),
    [
        ("x = 1", (), 0),
        ("x = 1", ("--fail-on", "error"), 3),
        ("x = 1", ("-q", "--fail-on", "warning"), 3),
        ("raise SystemExit(7)", ("--fail-on", "error"), 7),
        ("1 / 0", ("--fail-on", "error"), 1),
        ("raise KeyboardInterrupt", (), 130),
    ],
)
def test_status_of_a_scan(
    script: str, options: tuple[str, ...], status: int, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(script)
    done = scan(tmp_path, *options)
    assert done.returncode == status
    assert ("checks clear" in done.stderr) is (status == 1)  # what it raised is a finding
    if status == 3:
        assert "[nothing-examined]" in done.stderr
        assert "no optimizer step was seen" in done.stderr


def scan(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fp16doctor", "scan", *options, "train.py"]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SAMPLES.parents[1]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_a_run_without_training_is_not_called_clear(folder: Path) -> None:
    done = CliRunner().invoke(fp16doctor, ["report", "never-trained.json"])
    assert "checks clear" not in done.stderr
    assert "nothing was examined" in done.stderr
    assert "let the script reach `optimizer.step()`" in done.stderr


@pytest.mark.parametrize("command", [(), *((name,) for name in _COMMANDS)])
def test_help_explains_every_status(command: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(fp16doctor, [*command, "--help"]).output
    for status in statuses.MEANINGS:
        assert f"\n    {status} " in shown


def test_severities_reach_what_is_named_and_below() -> None:
    def told(fail_on: str) -> list[bool]:
        return [statuses.reached([severity], fail_on) for severity in Severity]

    assert told("never") == [False, False, False]
    assert told("error") == [True, False, False]
    assert told("warning") == [True, True, False]


def test_format_json_is_the_diagnosis_on_standard_output(folder: Path) -> None:
    done = CliRunner().invoke(fp16doctor, ["report", "overflow.json", "--format", "json"])
    assert json.loads(done.stdout) == json.loads((folder / "overflow.json").read_text())
    assert done.stderr == ""


def test_formats_follow_the_scripts_own_output(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('mine')")
    lines = scan(tmp_path, "--format", "github").stdout.splitlines()
    assert lines[0] == "mine"
    assert lines[1].startswith("::warning title=nothing was examined::no optimizer step was seen")
    own, _, rest = scan(tmp_path, "--format", "json").stdout.partition("\n")
    assert own == "mine"
    assert json.loads(rest)["steps"] == []
