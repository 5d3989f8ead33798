"""``fp16doctor replay`` and ``repro``, as a user calls them on what a scan kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fp16doctor.cli.main import main
from fp16doctor.record.bundle import read_bundle

SCRIPT = Path(__file__).parents[1] / "scripts" / "overflowing.py"
ROOT = Path(__file__).parents[2]


def scan(folder: Path, bundle: str, script: Path, *arguments: str) -> None:
    command = ("fp16doctor", "scan", "--budget", "0", "--save-bundle", bundle, str(script))
    done = subprocess.run(
        [sys.executable, "-m", *command, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    scan(folder, "a.fp16doctor", SCRIPT, "quietly")
    scan(folder, "clean.fp16doctor", SCRIPT.with_name("clean.py"))
    return folder


@pytest.fixture
def folder(kept: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(kept)
    return kept


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


class Doctor:
    """The command in this process: torch is loaded already."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, captured.out, captured.err)


@pytest.fixture
def doctor(folder: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(capsys)


def test_the_answer_is_on_stdout(doctor: Doctor) -> None:
    done = doctor("replay", "a.fp16doctor", "--dtype", "bf16")
    assert (done.returncode, done.stderr) == (0, "")
    assert "fidelity  bit-equal to the recording: " in done.stdout
    assert "what if   bf16, against the fp32 replay" in done.stdout
    assert "verdict   " in done.stdout


def test_the_answer_as_json(doctor: Doctor, folder: Path) -> None:
    done = doctor("replay", "a.fp16doctor", "--loss-scale", "8", "--json", "answer.json")
    answer = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    assert done.returncode == 0
    assert answer["question"]["loss_scale"] == 8
    assert answer["repetition"]["differing"] == 0
    assert answer["verification"]["after"]["loss scale"] == 8


def test_what_cannot_be_replayed_is_said_in_one_line(doctor: Doctor, folder: Path) -> None:
    (folder / "cut.fp16doctor").write_bytes((folder / "a.fp16doctor").read_bytes()[:-100])
    done = doctor("replay", "cut.fp16doctor")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("fp16doctor: cannot read a bundle from 'cut.fp16doctor': it ends")
    assert done.stderr.endswith("[truncated-bundle]\n")
    assert done.stderr.count("\n") == 1
    done = doctor("replay", "a.fp16doctor", "--keep", "module:none")
    assert done.returncode == 2
    assert "[keep-covers-nothing]" in done.stderr


# -- repro ---------------------------------------------------------------------------------------


def test_a_script_that_shows_the_fault_with_torch_alone(doctor: Doctor, tmp_path: Path) -> None:
    done = doctor("repro", "a.fp16doctor", "-o", str(tmp_path / "short.py"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith("short.py (run: it shows the fault)")
    text = (tmp_path / "short.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    imported = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    assert set(imported) <= {"import torch", "import json", "from pathlib import Path"}
    alone = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "short.py")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert alone.returncode == 0, alone.stderr
    assert "inf or NaN in float16, finite in float32" in alone.stdout


def test_the_name_follows_the_bundle_and_a_dash_is_stdout(doctor: Doctor, folder: Path) -> None:
    assert doctor("repro", "a.fp16doctor").returncode == 0
    text = (folder / "repro-a.py").read_text(encoding="utf-8")
    done = doctor("repro", "a.fp16doctor", "-o", "-")
    if (folder / "repro-a.safetensors").exists():
        assert "[repro-needs-file]" in done.stderr
    else:
        assert done.stdout == text


def test_a_step_without_a_fault_has_no_repro(doctor: Doctor, folder: Path) -> None:
    assert read_bundle(folder / "clean.fp16doctor").origin.finding is None
    done = doctor("repro", "clean.fp16doctor")
    assert done.returncode == 4
    assert "[no-fault-shown]" in done.stderr
    assert not (folder / "repro-clean.py").exists()
    assert "[no-such-file]" in doctor("repro", "none.fp16doctor").stderr


# -- what is there is not written over -----------------------------------------------------------


def test_the_bundle_is_not_written_over(doctor: Doctor, folder: Path) -> None:
    whole = (folder / "a.fp16doctor").read_bytes()
    (folder / "link").symlink_to("a.fp16doctor")
    (folder / "b.safetensors").write_bytes(whole)
    for command in (
        ("replay", "a.fp16doctor", "--json", "./a.fp16doctor"),
        ("replay", "link", "--json", "a.fp16doctor"),
        ("repro", "a.fp16doctor", "-o", "link"),
        ("repro", "b.safetensors", "-o", "b.py"),
    ):
        done = doctor(*command)
        assert (done.returncode, done.stdout) == (2, ""), command
        assert "[same-output]" in done.stderr
    assert (folder / "a.fp16doctor").read_bytes() == whole
    assert (folder / "b.safetensors").read_bytes() == whole
    assert not (folder / "b.py").exists()


@pytest.mark.parametrize("name", [".", "none/short.py", "short.safetensors"])
def test_names_that_a_script_cannot_take(doctor: Doctor, name: str) -> None:
    done = doctor("repro", "a.fp16doctor", "-o", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert "[unwritable-output]" in done.stderr


def test_tensors_of_others_beside_the_script_stay(
    doctor: Doctor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fp16doctor.report.repro_script.INLINE", 0)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "model.py").write_text("print('mine')\n", encoding="utf-8")
    done = doctor("repro", "a.fp16doctor", "-o", "model.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a file of that name is there already" in done.stderr
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert (folder / "model.py").read_text(encoding="utf-8") == "print('mine')\n"
    for _ in range(2):  # the second time over its own
        assert doctor("repro", "a.fp16doctor", "-o", "other.py").returncode == 0
    assert (folder / "other.safetensors").exists()
