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


def test_a_start_without_a_file_is_left_to_the_run(tmp_path: Path) -> None:
    unknown = of("nowhere.py", file="", sha256="")
    start = can_run_again(unknown, SOURCE)
    with pytest.raises(Fp16DoctorError, match=r"no such|there is no") as caught:
        scan_again(unknown, start, tmp_path)
    assert caught.value.slug == "scan-again-failed"


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
    diagnosis = of("mine", "--", "-q", folder=str(tmp_path / "work"), is_module=True, steps=3,
                   file="", sha256="")  # fmt: skip
    assert diagnosis.start is not None
    bundle = read_bundle(scan_again(diagnosis, diagnosis.start, tmp_path))
    assert (bundle.origin.script, bundle.origin.step) == ("mine", 2)
    assert load(tmp_path / "again.json").run.argv == ("--", "-q")
    assert sorted(os.listdir(tmp_path / "work")) == ["mine.py"]
