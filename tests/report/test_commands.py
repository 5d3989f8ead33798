"""``fp16doctor report`` and ``fp16doctor explain``, as a user calls them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fp16doctor.diagnose.rule import all_rules
from fp16doctor.report.html import render_html
from fp16doctor.schema.codec import load, to_json
from fp16doctor.schema.prescription import Recommendation, RecommendationStatus

SAMPLE = Path(__file__).parent.parent / "samples" / "v1-overflow.json"
CHECKOUT = str(SAMPLE.parents[2])
ENVIRONMENT = {**os.environ, "PYTHONPATH": CHECKOUT, "PYTHONUTF8": "1", "COLUMNS": "100"}
EXPECTED = render_html(load(SAMPLE)) if SAMPLE.exists() else ""


def run(*args: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fp16doctor", *map(str, args)],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        cwd=cwd,
        env=ENVIRONMENT,
    )


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "run 1.json"
    path.write_bytes(SAMPLE.read_bytes())
    return path


def test_the_page_lands_beside_the_json_and_the_summary_on_stderr(saved: Path) -> None:
    done = run("report", saved.name, cwd=saved.parent)
    assert done.returncode == 0
    assert done.stdout == ""
    assert saved.with_suffix(".html").read_text(encoding="utf-8") == EXPECTED
    assert done.stderr.startswith("verdict  the loss is NaN at every step (30 of 30)")
    again = "report: 'run 1.html'        again: fp16doctor report 'run 1.json'\n"
    assert done.stderr.endswith(again)


def test_a_dash_sends_the_page_to_stdout(saved: Path) -> None:
    done = run("report", saved, "-o", "-")
    assert done.stdout == EXPECTED
    assert "report:" not in done.stderr
    assert list(saved.parent.iterdir()) == [saved]


def test_another_file_can_be_named(saved: Path, tmp_path: Path) -> None:
    assert run("report", saved, "-o", tmp_path / "out.html").returncode == 0
    assert (tmp_path / "out.html").read_text(encoding="utf-8") == EXPECTED


@pytest.mark.parametrize(
    ("args", "status", "slug"),
    [
        (("missing.json",), 2, "no-such-file"),
        (("run 1.json", "-o", "run 1.json"), 2, "output-is-input"),
        (("run 1.json", "-o", "none/out.html"), 2, "unwritable-output"),
        (("cut.json",), 4, "truncated-diagnosis"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(
    args: tuple[str, ...], status: int, slug: str, saved: Path
) -> None:
    (saved.parent / "cut.json").write_bytes(SAMPLE.read_bytes()[:1000])
    done = run("report", *args, cwd=saved.parent)
    assert done.returncode == status
    assert f"[{slug}]" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
    assert not list(saved.parent.glob("*.html"))


def test_explain_lists_every_rule() -> None:
    done = run("explain")
    assert done.returncode == 0
    for rule in all_rules():
        assert f"{rule.code}  {rule.name}" in done.stdout
        assert rule.summary in done.stdout


@pytest.mark.parametrize("code", ["FD101", "fd101", "activation-overflow"])
def test_explain_shows_the_page_of_one_rule(code: str) -> None:
    done = run("explain", code)
    assert done.stdout.startswith("FD101 activation-overflow\n\n")
    assert "Why it matters:" in done.stdout


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("FD1O1", "FD101"),
        ("activation-overflw", "activation-overflow"),
        ("zzz", "lists all checks"),
    ],
)
def test_an_unknown_code_is_refused_with_close_matches(code: str, hint: str) -> None:
    done = run("explain", code)
    assert done.returncode == 2
    assert "[unknown-code]" in done.stderr
    assert hint in done.stderr


@pytest.mark.parametrize(("forced", "colored"), [({"FORCE_COLOR": "1"}, True), ({}, False)])
def test_the_summary_is_plain_where_it_is_piped(
    saved: Path, forced: dict[str, str], colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in forced.items():
        monkeypatch.setitem(ENVIRONMENT, name, value)
    monkeypatch.setitem(ENVIRONMENT, "NO_COLOR", "")
    assert ("\x1b[" in run("report", saved).stderr) is colored


def test_the_text_to_paste_comes_alone_and_patch_takes_it(saved: Path, tmp_path: Path) -> None:
    diagnosis = load(saved)
    cure = diagnosis.prescriptions[0]
    diff = "--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,2 @@\n-x = 1\n+x = 2\n y = 3"
    changed = replace(cure, remedy=replace(cure.remedy, change=diff))
    saved.write_text(to_json(replace(diagnosis, prescriptions=(changed,))), encoding="utf-8")
    done = run("report", saved, "--format", "paste")
    assert (done.returncode, done.stdout, done.stderr) == (0, diff + "\n", "")
    script = tmp_path / "train.py"
    script.write_text("x = 1\ny = 3\n")
    subprocess.run(["patch", "-p1"], input=done.stdout, text=True, cwd=tmp_path, check=True)
    assert script.read_text() == "x = 2\ny = 3\n"


def test_where_there_is_nothing_to_paste_it_is_said(saved: Path) -> None:
    bare = replace(load(saved), prescriptions=(), recommendation=Recommendation(
        RecommendationStatus.NONE_NEEDED, "nothing to change"))  # fmt: skip
    saved.write_text(to_json(bare), encoding="utf-8")
    done = run("report", saved, "--format", "paste")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"fp16doctor: '{saved}' has no cure with a text to paste\n"
