"""``fp16doctor repro DIAGNOSIS.json``: by the bundle that was kept, or by a second run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fp16doctor.cli.main import main
from fp16doctor.record.digest import sha256_of
from fp16doctor.schema.codec import load
from fp16doctor.schema.start import BundleFile

SCRIPT = Path(__file__).parents[1] / "scripts" / "overflowing.py"
ROOT = Path(__file__).parents[2]
Doctor = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a script, its diagnosis and the bundle in a folder beside."""
    folder = tmp_path_factory.mktemp("scanned")
    shutil.copy(SCRIPT, folder / "train.py")
    (folder / "bundles").mkdir()
    command = ("-m", "fp16doctor", "scan", "--budget", "0", "--steps", "4", "--device", "cpu")
    done = subprocess.run(
        [sys.executable, *command, "--save-bundle", "bundles/kept.x", "train.py", "quietly"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def folder(scanned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The diagnosis alone, in a folder of its own."""
    shutil.copy(scanned / "fp16doctor-train.json", tmp_path / "d.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def doctor(folder: Path, capfd: pytest.CaptureFixture[str]) -> Doctor:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, captured.out, captured.err

    return run


def change(folder: Path, **start: object) -> None:
    """Change how the diagnosis says that the script was started, and forget the bundle."""
    data = json.loads((folder / "d.json").read_text(encoding="utf-8"))
    data["start"].update(start)
    data["bundle"] = None
    (folder / "d.json").write_text(json.dumps(data), encoding="utf-8")


def test_the_diagnosis_names_its_bundle_and_how_the_script_was_started(scanned: Path) -> None:
    diagnosis, kept = load(scanned / "fp16doctor-train.json"), scanned / "bundles" / "kept.x"
    assert diagnosis.bundle == BundleFile("kept.x", str(kept), sha256_of(kept), kept.stat().st_size)
    start, script = diagnosis.start, scanned / "train.py"
    assert start is not None
    assert (start.folder, start.file, start.sha256) == (
        str(scanned), str(script), sha256_of(script),
    )  # fmt: skip
    assert (start.is_module, start.steps, start.device) == (False, 4, "cpu")


def test_the_kept_bundle_is_taken_where_it_was_written(doctor: Doctor, folder: Path) -> None:
    status, out, err = doctor("repro", "--no-run", "d.json")
    assert (status, err) == (0, "")
    assert out.endswith("repro: repro-d.py (run: it shows the fault)\n")
    assert "inf or NaN in float16, finite in float32" in out


def test_the_kept_bundle_is_taken_beside_the_diagnosis_first(
    doctor: Doctor, folder: Path, scanned: Path
) -> None:
    shutil.copy(scanned / "bundles" / "kept.x", folder / "kept.x")
    data = json.loads((folder / "d.json").read_text(encoding="utf-8"))
    data["bundle"]["path"] = "/no/such/folder/kept.x"
    (folder / "d.json").write_text(json.dumps(data), encoding="utf-8")
    assert doctor("repro", "--no-run", "d.json")[0] == 0


def test_another_bundle_of_that_name_is_refused(
    doctor: Doctor, folder: Path, scanned: Path
) -> None:
    data = json.loads((folder / "d.json").read_text(encoding="utf-8"))
    data["bundle"]["path"] = "/no/such/folder/kept.x"
    (folder / "d.json").write_text(json.dumps(data), encoding="utf-8")
    whole = (scanned / "bundles" / "kept.x").read_bytes()
    (folder / "kept.x").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    status, out, err = doctor("repro", "d.json")
    assert (status, out) == (4, "")
    assert err.startswith("fp16doctor: 'kept.x' is not the bundle that 'd.json' was written with")
    assert err.endswith("[other-bundle]\n")


def test_without_a_bundle_the_script_runs_again(
    doctor: Doctor, folder: Path, scanned: Path
) -> None:
    change(folder)
    files = sorted(scanned.iterdir())
    status, out, err = doctor("repro", "d.json", "-o", "-")
    assert status == 0, err
    assert err.startswith(
        "fp16doctor: the bundle of 'd.json' was not kept; 'train.py quietly' runs again in"
    )
    assert err.count("\n") == 1
    assert out.startswith("# aten.pow.Tensor_Scalar: inf or NaN in float16")
    compile(out, "repro.py", "exec")
    assert sorted(scanned.iterdir()) == files
    assert sorted(path.name for path in folder.iterdir()) == ["d.json"]


def test_a_second_run_can_be_forbidden(doctor: Doctor, folder: Path) -> None:
    change(folder)
    status, out, err = doctor("repro", "--no-run", "d.json")
    assert (status, out) == (2, "")
    assert "[repro-needs-bundle]" in err


def test_a_script_that_changed_or_went_is_not_run(doctor: Doctor, folder: Path) -> None:
    change(folder, sha256="0" * 64)
    status, _, err = doctor("repro", "d.json")
    assert (status, err.count("\n")) == (2, 1)
    assert "has changed since 'd.json' was written" in err
    assert "[script-changed]" in err
    change(folder, file=str(folder / "gone.py"))
    status, _, err = doctor("repro", "d.json")
    assert (status, err.count("\n")) == (2, 1)
    assert "[script-gone]" in err


def test_what_the_second_run_shows_first_is_told_where_it_differs(
    doctor: Doctor, folder: Path, scanned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = "fp16doctor.pipeline.again.scan_again"
    monkeypatch.setattr(again, lambda *given: scanned / "bundles" / "kept.x")
    data = json.loads((folder / "d.json").read_text(encoding="utf-8"))
    data["findings"][0]["code"], data["bundle"] = "FD999", None
    (folder / "d.json").write_text(json.dumps(data), encoding="utf-8")
    status, _, err = doctor("repro", "d.json")
    assert status == 0
    assert "the run shows FD101 first now, 'd.json' shows FD999" in err
