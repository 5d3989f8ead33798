"""A script is run again only where it can be, and what came of it is said."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fp16doctor.errors import Fp16DoctorError, UsageError
from fp16doctor.pipeline.again import can_run_again, scan_again
from fp16doctor.record.bundle import read_bundle
from fp16doctor.record.digest import sha256_of
from fp16doctor.schema.codec import load
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.start import ScanStart

SAMPLES = Path(__file__).parents[1] / "samples"
SCRIPTS = Path(__file__).parents[1] / "scripts"
SOURCE = Path("d.json")


def of(script: str, *argv: str, **start: object) -> Diagnosis:
    """A diagnosis with a finding, of a script that stands beside the tests."""
    sample = load(SAMPLES / "v1-overflow.json")
    run = replace(sample.run, script=script, argv=argv)
    file = str(SCRIPTS / "clean.py")
    started = replace(ScanStart(str(SCRIPTS), file=file, sha256=sha256_of(file)), **start)
    return replace(sample, run=run, start=started)


def refusal(diagnosis: Diagnosis) -> UsageError:
    with pytest.raises(UsageError) as caught:
        can_run_again(diagnosis, SOURCE)
    return caught.value


def test_what_cannot_be_run_again_is_refused() -> None:
    good = of("clean.py")
    assert can_run_again(good, SOURCE) == good.start
    assert refusal(replace(good, findings=())).slug == "nothing-to-show"
    assert refusal(replace(good, start=None)).slug == "not-a-scan"
    assert refusal(of("clean.py", folder="/no/such/folder")).slug == "script-gone"
    gone = refusal(of("clean.py", file="/no/such/clean.py"))
    assert (gone.slug, "/no/such/clean.py" in gone.message) == ("script-gone", True)
    assert refusal(of("clean.py", sha256="0" * 64)).slug == "script-changed"


def test_what_was_in_no_file_is_not_run() -> None:
    assert refusal(of("/dev/fd/63", file="", sha256="")).slug == "script-gone"


def test_a_diagnosis_runs_no_other_file_than_the_one_it_names() -> None:
    assert refusal(of("arguments.py")).slug == "not-this-script"
    assert refusal(of("timeit", "import os", is_module=True)).slug == "not-this-script"


def test_what_python_cannot_be_started_with(tmp_path: Path) -> None:
    diagnosis = of("clean.py", "a\0b")
    with pytest.raises(Fp16DoctorError, match=r"could not be started again.*\[scan-again-failed\]"):
        scan_again(diagnosis, can_run_again(diagnosis, SOURCE), tmp_path)


def test_a_scan_that_fails_says_its_last_words(tmp_path: Path) -> None:
    diagnosis = of("clean.py", device="none")
    with pytest.raises(Fp16DoctorError, match=r"left no bundle \(status 2\): .*'none'"):
        scan_again(diagnosis, can_run_again(diagnosis, SOURCE), tmp_path)


def test_a_run_without_a_finding_now(tmp_path: Path) -> None:
    diagnosis = of("clean.py")
    with pytest.raises(Fp16DoctorError, match=r"'clean.py' ran again and shows no finding now"):
        scan_again(diagnosis, can_run_again(diagnosis, SOURCE), tmp_path)


def test_a_module_with_its_arguments_and_steps(tmp_path: Path) -> None:
    """Arguments that look like options stay the script's own."""
    (tmp_path / "work").mkdir()
    text = (SCRIPTS / "overflowing.py").read_text(encoding="utf-8")
    (tmp_path / "work" / "mine.py").write_text(
        text.replace("sys.argv[1]", "sys.argv[2]") + "assert sys.argv[1:] == ['--', '-q']\n",
        encoding="utf-8",
    )
    file = tmp_path / "work" / "mine.py"
    diagnosis = of("mine", "--", "-q", folder=str(tmp_path / "work"), is_module=True, steps=3,
                   file=str(file), sha256=sha256_of(file))  # fmt: skip
    bundle = read_bundle(scan_again(diagnosis, can_run_again(diagnosis, SOURCE), tmp_path))
    assert (bundle.origin.script, bundle.origin.step) == ("mine", 2)
    assert load(tmp_path / "again.json").run.argv == ("--", "-q")
    assert sorted(os.listdir(tmp_path / "work")) == ["mine.py"]
