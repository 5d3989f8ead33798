"""``scan --save-bundle``, as a user calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fp16doctor.cli.bundles import question
from fp16doctor.cli.outputs import choose, choose_bundle
from fp16doctor.errors import UsageError
from fp16doctor.record.bundle import read_bundle
from fp16doctor.replay.outcome import repeat
from fp16doctor.schema.codec import load
from fp16doctor.schema.prescription import (
    Prescription,
    Recommendation,
    RecommendationStatus,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)

SCRIPTS = Path(__file__).parents[1] / "scripts"
ROOT = Path(__file__).parents[2]


def scan(
    folder: Path, script: str, *options: str, argument: str = "quietly"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fp16doctor", "scan", "--budget", "0", *options, script, argument],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_the_leading_findings_step_is_kept(tmp_path: Path) -> None:
    script = str(SCRIPTS / "overflowing.py")
    done = scan(tmp_path, script, "--save-bundle", "kept.fp16doctor")
    assert done.returncode == 0, done.stderr
    bundle = read_bundle(tmp_path / "kept.fp16doctor")
    finding = bundle.origin.finding
    assert finding is not None
    assert finding.site is not None
    assert finding.site.step == bundle.tape.step == bundle.origin.step
    assert bundle.origin.script == script
    assert bundle.origin.torch_version == torch.__version__
    assert bundle.origin.settings["float32 matmul precision"] == "highest"
    seen = repeat(bundle.tape, bundle.outcome)
    assert (seen.differing, seen.loss) == (0, pytest.approx(bundle.origin.loss, nan_ok=True))
    assert seen.compared > 0
    plain = subprocess.run([sys.executable, script, "quietly"], capture_output=True, text=True,
                           timeout=110, check=True)  # fmt: skip
    assert done.stdout == plain.stdout
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"bundle: kept.fp16doctor (step {bundle.tape.step}, ")
    again = "KiB)        try: fp16doctor replay kept.fp16doctor --dtype bf16"
    assert last.endswith(again)  # with a budget of 0 nothing is recommended


def remedy(kind: RemedyKind, value: object = None, *target: str) -> Prescription:
    proof = Verification(Verdict.VERIFIED)
    return Prescription(Remedy(kind, "title", target=target, value=value), (0,), proof)


@pytest.mark.parametrize(
    ("cures", "formats", "options"),
    [
        ([remedy(RemedyKind.DTYPE, "fp32")], ("float16",), "--dtype fp32"),
        (
            [remedy(RemedyKind.FP32_KEEP, None, "module:a", "op:aten.exp.default")],
            ("bfloat16",),
            "--keep module:a --keep op:aten.exp.default",
        ),
        (
            [
                remedy(RemedyKind.FP32_KEEP, None, "module:a b"),
                remedy(RemedyKind.LOSS_SCALE, {"recommended": 2.0**24}),
            ],
            ("float16",),
            "--keep 'module:a b' --loss-scale 16777216",
        ),
        ([remedy(RemedyKind.CODE_FIX)], ("float16", "float32"), "--dtype bf16"),
        ([], ("bfloat16", "float32"), "--dtype fp32"),  # bf16 is what it ran in
        ([], ("float32",), "--dtype bf16"),
    ],
)
def test_the_question_that_is_suggested_is_the_recommended_cure(
    cures: list[Prescription], formats: tuple[str, ...], options: str
) -> None:
    base = load(Path(__file__).parents[1] / "samples" / "v1-overflow.json")
    chosen = Recommendation(RecommendationStatus.PRESCRIBED, "", tuple(range(len(cures))))
    run = replace(base.run, ops_by_dtype=tuple((name, 1) for name in formats))
    assert question(replace(base, run=run, prescriptions=tuple(cures), recommendation=chosen)) == (
        options
    )


def test_where_nothing_was_kept_it_is_said_and_no_failure(tmp_path: Path) -> None:
    options = ("-q", "--save-bundle", "kept.fp16doctor")
    done = scan(tmp_path, str(SCRIPTS / "never_trains.py"), *options)
    assert done.returncode == 0
    assert "no bundle was written: no step was examined" in done.stderr
    assert "[no-step-kept]" in done.stderr
    assert not (tmp_path / "kept.fp16doctor").exists()


def test_places_that_cannot_be_written_are_refused_before_the_script_runs(tmp_path: Path) -> None:
    done = scan(tmp_path, str(SCRIPTS / "clean.py"), "--save-bundle", "none/kept.fp16doctor")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "[unwritable-output]" in done.stderr


def test_a_bundle_has_a_file_of_its_own() -> None:
    outputs = choose("a.html", "a.json", "train")
    with pytest.raises(UsageError, match="same-output"):
        choose_bundle("./a.json", *outputs)
    with pytest.raises(UsageError, match="bundle-on-stdout"):
        choose_bundle("-", *outputs)
    assert choose_bundle(None, *outputs) is None
