"""A change of code as the diff of the script's own lines, in the script's own names."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fp16doctor.pipeline import ScanOptions, Session, own_lines
from fp16doctor.pipeline.own_lines import ScriptText, script_text, with_own_lines
from fp16doctor.record.script import Target, prepare
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase, SourceLine
from fp16doctor.schema.prescription import (
    Prescription,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)
from fp16doctor.schema.recording import OutcomeKind

HEAD = """\
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
s = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(4):
    x, y = torch.randn(8, 4), torch.randint(0, 2, (8,))
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(net(x), y)
    s.scale(loss).backward()
"""
CLIPPED = HEAD + """\
    nn.utils.clip_grad_norm_(
        net.parameters(),
        0.1,
    )
    s.step(opt)
    s.update()
    opt.zero_grad()
"""  # fmt: skip
PLAIN_STEP = HEAD + """\
    opt.step()
    s.update()
    opt.zero_grad()
"""  # fmt: skip
DIVIDED_BY_HAND = (
    HEAD
    + """\
    for p in net.parameters():
        p.grad /= s.get_scale()
    s.step(opt)
    s.update()
    opt.zero_grad()"""
)  # fmt: skip  - the file ends without a line end
PER_MICROBATCH = HEAD + """\
    s.unscale_(opt)
    if step % 2:
        s.step(opt)
        opt.zero_grad()
    s.update()
"""  # fmt: skip


def scanned(path: Path, text: str, *, sources: bool = True) -> Diagnosis:
    """Run a script in this process as ``scan`` does, without trying cures."""
    path.write_text(text)
    script = prepare(Target(str(path), False, ()))
    session = Session(ScanOptions(sources=sources, budget_s=0.0), str(path), ())
    run = script.run(session)
    return session.finish(run.outcome, run.exception)


def change_for(diagnosis: Diagnosis, code: str) -> str:
    place = next(i for i, f in enumerate(diagnosis.findings) if f.code == code)
    return next(
        p.remedy.change
        for p in diagnosis.prescriptions
        if p.remedy.kind is RemedyKind.CODE_FIX and place in p.treats
    )


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (CLIPPED, "FD402", "+    s.unscale_(opt)"),
        (PLAIN_STEP, "FD403", "+    s.step(opt)"),
        (DIVIDED_BY_HAND, "FD406", "-        p.grad /= s.get_scale()"),
    ],
    ids=["FD402", "FD403", "FD406"],
)
def test_the_diff_applies_and_the_finding_goes(
    tmp_path: Path, text: str, code: str, line: str
) -> None:
    before = scanned(tmp_path / "train.py", text)
    change = change_for(before, code)
    assert any(got.startswith(line) for got in change.splitlines()), change
    subprocess.run(["git", "apply"], input=change, text=True, cwd=tmp_path, check=True)
    after = scanned(tmp_path / "train.py", (tmp_path / "train.py").read_text())
    assert after.run.outcome.kind is OutcomeKind.FINISHED
    assert not {f.code for f in after.findings if f.severity is not Severity.NOTE}


def test_half_of_a_change_is_not_told(tmp_path: Path) -> None:
    """With ``update`` alone under the condition, the second ``unscale_`` would raise."""
    assert change_for(scanned(tmp_path / "train.py", PER_MICROBATCH), "FD405") == ""


def test_without_source_lines_no_text_is_told(tmp_path: Path) -> None:
    assert change_for(scanned(tmp_path / "train.py", CLIPPED, sources=False), "FD402") == ""


def test_the_text_is_that_of_the_start_of_the_run(tmp_path: Path) -> None:
    text = CLIPPED + "open(__file__, 'w').write('')\n"
    assert "s.unscale_(opt)" in change_for(scanned(tmp_path / "train.py", text), "FD402")


# -- which of the script's findings a diff is taken from -------------------------------------------

TWO = """\
import torch
one, two = make()
s = torch.amp.GradScaler("cuda")
for x in loader:
    s.scale(f(x)).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    s.step(one)
    s.update()
for x in loader:
    s.scale(f(x)).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    s.step(two)
    s.update()
"""
ONE = "".join(TWO.splitlines(keepends=True)[:8])


def at(line: int | None, file: str = "train.py", **kwargs: Any) -> Finding:
    """A finding at a line; at none in the end."""
    source = None if line is None else SourceLine(file, line, "<module>")
    site = None if line is None else OpSite(0, Phase.OPTIMIZER, "", 0, source=source)
    said: dict[str, Any] = {"name": "clipped-before-unscale", "fault": Fault.MISUSE} | kwargs
    return Finding("FD402", severity=Severity.ERROR, what="", cause="", site=site, **said)


def told(text: str, finding: Finding, remedy: Remedy | None = None) -> tuple[str, list[str]]:
    """The change of the only prescription, and the slugs of what was cautioned."""
    untried = Verification(Verdict.NOT_VERIFIED)
    cure = Prescription(remedy or Remedy(RemedyKind.CODE_FIX, "unscale"), (0,), untried)
    slugs: list[str] = []
    script = ScriptText("train.py", textwrap.dedent(text))
    (got,) = with_own_lines((cure,), (finding,), script, lambda slug, said: slugs.append(slug))
    assert replace(got, remedy=cure.remedy) == cure
    return got.remedy.change, slugs


def test_the_line_chooses_among_several() -> None:
    assert "s.unscale_(one)" in told(TWO, at(6))[0]
    assert "s.unscale_(two)" in told(TWO, at(11))[0]
    assert told(TWO, at(12))[0] == ""
    assert told(TWO, at(None))[0] == ""


def test_a_single_one_is_taken_wherever_the_recipe_shows_its_fault() -> None:
    assert "s.unscale_(one)" in told(ONE, at(7))[0]
    assert "s.unscale_(one)" in told(ONE, at(None))[0]


def test_a_line_of_another_file_is_not_the_scripts() -> None:
    assert told(ONE, at(6, "lib/train.py")) == ("", [])


def test_a_fault_of_one_op_takes_no_other_lines_diff() -> None:
    assert told(ONE, at(7, fault=Fault.OVERFLOW))[0] == ""
    assert told(ONE, at(None, fault=Fault.OVERFLOW))[0] == ""
    assert "s.unscale_(one)" in told(ONE, at(6, fault=Fault.OVERFLOW))[0]


def test_the_name_of_a_finding_folded_under_it_counts() -> None:
    assert "s.unscale_(one)" in told(ONE, at(6, name="other", subsumes=("FD402",)))[0]
    assert told(ONE, at(6, name="other", subsumes=("FD403",)))[0] == ""


def test_the_callers_line_counts() -> None:
    finding = at(3, "lib/clip.py")
    assert finding.site is not None
    caller = SourceLine("train.py", 11, "<module>")
    called = replace(finding, site=replace(finding.site, caller=caller))
    assert "s.unscale_(two)" in told(TWO, called)[0]


def test_a_change_that_is_told_already_stays() -> None:
    assert told(ONE, at(6), Remedy(RemedyKind.CODE_FIX, "t", change="own"))[0] == "own"
    assert told(ONE, at(6), Remedy(RemedyKind.DTYPE, "t"))[0] == ""


UNSCALED = """\
import torch
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for x in loader:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = f(net(x))
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_a_scaler_to_add_is_put_into_the_script_s_own_lines() -> None:
    scale = {"low": 1.0, "recommended": 1024.0, "high": 2.0**20}
    general = "scaler = torch.amp.GradScaler('cpu', init_scale=1024.0)\n…"
    remedy = Remedy(RemedyKind.LOSS_SCALE, "t", change=general, value=scale)
    missing = at(7, name="fp16-without-scaler", fault=Fault.LOSS_SCALE)
    change, _ = told(UNSCALED, missing, remedy)
    assert '+scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)' in change.splitlines()
    assert "+    scaler.scale(loss).backward()" in change.splitlines()
    assert told(UNSCALED, replace(missing, name="other"), remedy)[0] == general
    by_hand = replace(remedy, change="(1024.0 * loss).backward()")
    assert told(UNSCALED, missing, by_hand)[0] == by_hand.change


def test_a_reader_that_fails_costs_a_caution(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told("import torch\nif :\n", at(6)) == ("", ["script-not-read"])

    def broken(text: str, path: str) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(own_lines, "lint_script", broken)
    assert told(ONE, at(6)) == ("", ["script-not-read"])


def test_reading_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert told(ONE + "text = '\\d'\n", at(6))[0]


def test_what_is_no_file_of_source_has_no_text(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\x00\xff")
    assert script_text(str(tmp_path)).text == ""
    assert script_text(str(tmp_path / "binary")).text == ""
    assert script_text("package.module").text == ""
    assert script_text(sys.executable).text == ""
