"""The wheel holds the whole package and its templates, and renders from where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SAMPLES = sorted((ROOT / "tests" / "samples").glob("*.json"))
BUILT_FROM = ("fp16doctor", "reports", "pyproject.toml", "README.md", "LICENSE")


def run(*args: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, f"{args}: {done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, installed into an otherwise empty folder."""
    work = tmp_path_factory.mktemp("wheel")
    source = work / "source"  # a copy: the build leaves folders behind
    source.mkdir()
    for name in BUILT_FROM:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    offline = ("--no-deps", "--no-index", "--disable-pip-version-check")
    run("-m", "pip", "wheel", *offline, "--no-build-isolation", "-w", "..", ".", cwd=source)
    (wheel,) = work.glob("fp16doctor-*.whl")
    target = work / "site"
    run("-m", "pip", "install", *offline, "--target", str(target), str(wheel), cwd=work)
    return target


def test_every_module_and_template_is_in_the_wheel(site: Path) -> None:
    wanted = {p.relative_to(ROOT).as_posix() for p in (ROOT / "fp16doctor").rglob("*.py")}
    templates = [p for p in (ROOT / "reports" / "templates").iterdir() if p.is_file()]
    wanted |= {f"fp16doctor/report/templates/{p.name}" for p in templates}
    wanted |= {"fp16doctor/py.typed"}
    got = {p.relative_to(site).as_posix() for p in (site / "fp16doctor").rglob("*") if p.is_file()}
    missing = sorted(wanted - got)
    assert not missing, f"add their folders to 'packages' in pyproject.toml: {missing}"
    extra = {path for path in got - wanted if not path.endswith(".pyc")}
    assert not extra


def test_there_are_saved_diagnoses_to_render() -> None:
    assert SAMPLES


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_a_saved_diagnosis_renders_from_the_wheel(site: Path, sample: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    program = (
        "import sys, fp16doctor; from fp16doctor.cli.main import main;"
        "print(fp16doctor.__file__); sys.exit(main())"
    )
    command = ("-c", program, "report", str(sample), "-o", str(page))
    done = run(*command, cwd=tmp_path, PYTHONPATH=str(site))
    assert Path(done.stdout.splitlines()[0]).is_relative_to(site)
    text = page.read_text(encoding="utf-8")
    assert text.rstrip().endswith("</html>")
    assert "<style>" in text


def test_the_installed_command_answers(site: Path, tmp_path: Path) -> None:
    script = site / "bin" / "fp16doctor"
    done = run(str(script), "--help", cwd=tmp_path, PYTHONPATH=str(site))
    assert "scan" in done.stdout
