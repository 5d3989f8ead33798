"""Beside a run: what its scripts show, the run does not refute, and no finding of it says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fp16doctor.pipeline import ScanOptions, Session
from fp16doctor.pipeline import script_notes as module
from fp16doctor.pipeline.own_lines import ScriptText
from fp16doctor.pipeline.script_notes import texts_beside
from fp16doctor.record.script import Target, prepare
from fp16doctor.record.source_lines import SourceLines
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Finding, Severity
from fp16doctor.schema.prescription import RecommendationStatus, RemedyKind, Verdict

HEAD = """\
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
"""
LOOP = """\
for step in range({steps}):
    x, y = torch.randn(8, 4), torch.randint(0, 2, (8,))
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(net(x), y)
"""
SCALER = 's = torch.amp.GradScaler("cpu", init_scale={scale})\n'
SCALED = "    s.scale(loss).backward()\n    s.step(opt)\n"
PLAIN = "    loss.backward()\n    opt.step()\n"
UNUSED_FACTOR = """\
    loss.backward()
    norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in net.parameters()))
    coef = 1.0 / (norm + 1e-6)
    opt.step()
"""
MEAN = """\
import torch


class Mean:
    def __init__(self):
        self.total = torch.zeros(1, dtype=torch.bfloat16)

    def add(self, value):
        self.total += value.detach()
"""


@pytest.fixture(autouse=True)
def own_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules that a script imports do not outlive its test."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            monkeypatch.delitem(sys.modules, name)


def scanned(path: Path, text: str, *, sources: bool = True, style: bool = False) -> Diagnosis:
    path.write_text(text)
    script = prepare(Target(str(path), False, ()))
    options = ScanOptions(sources=sources, style=style, budget_s=0.0)
    session = Session(options, str(path), ())
    run = script.run(session)
    return session.finish(run.outcome, run.exception)


def notes(diagnosis: Diagnosis) -> list[Finding]:
    return [f for f in diagnosis.findings if f.code.startswith("FD7")]


def test_what_no_run_shows_is_told_as_a_note(tmp_path: Path) -> None:
    got = scanned(tmp_path / "train.py", HEAD + LOOP.format(steps=2) + UNUSED_FACTOR)
    (note,) = notes(got)
    assert (note.code, note.severity) == ("FD730", Severity.NOTE)
    assert note.site is not None
    assert note.site.source is not None
    assert note.site.source.text == "coef = 1.0 / (norm + 1e-6)"
    assert got.recommendation.status is RecommendationStatus.NONE_NEEDED


def test_a_file_beside_the_script_is_read_too_and_the_fix_is_a_change(tmp_path: Path) -> None:
    (tmp_path / "my_mean.py").write_text(MEAN)
    text = HEAD + "from my_mean import Mean\nm = Mean()\n" + LOOP.format(steps=2)
    got = scanned(tmp_path / "train.py", text + "    m.add(loss)\n" + PLAIN)
    (note,) = notes(got)
    at = got.findings.index(note)
    assert note.code == "FD724"
    (cure,) = (p for p in got.prescriptions if at in p.treats)
    assert cure.remedy.kind is RemedyKind.CODE_FIX
    assert cure.verification.verdict is Verdict.NOT_VERIFIED
    assert "--- a/my_mean.py\n" in cure.remedy.change
    assert "dtype=torch.float32" in cure.remedy.change


def test_a_run_of_one_step_does_not_refute_a_missing_update(tmp_path: Path) -> None:
    once = HEAD + SCALER.format(scale=8.0) + LOOP.format(steps=1) + SCALED
    assert [f.code for f in notes(scanned(tmp_path / "once.py", once))] == ["FD702"]


def test_an_exception_that_tells_it_takes_its_diff_and_no_note(tmp_path: Path) -> None:
    twice = HEAD + SCALER.format(scale=8.0) + LOOP.format(steps=3) + SCALED
    got = scanned(tmp_path / "twice.py", twice)
    assert notes(got) == []
    at = next(i for i, f in enumerate(got.findings) if f.code == "FD901")
    (cure,) = (p for p in got.prescriptions if at in p.treats)
    assert "+    s.update()" in cure.remedy.change


def test_an_exception_without_a_word_on_precision_is_explained(tmp_path: Path) -> None:
    got = scanned(tmp_path / "train.py", HEAD + "opt = opt.half()\n")
    assert [f.code for f in notes(got)] == ["FD711"]


def test_a_line_that_never_ran_is_not_told(tmp_path: Path) -> None:
    text = HEAD + "if net is None:\n    opt.half()\n" + LOOP.format(steps=2) + PLAIN
    assert notes(scanned(tmp_path / "train.py", text)) == []


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
@pytest.mark.parametrize("scale", [8.0, 2.0**24])
def test_skips_of_the_warm_up_are_no_news_to_a_schedule(tmp_path: Path, scale: float) -> None:
    text = HEAD + SCALER.format(scale=scale)
    text += "sched = torch.optim.lr_scheduler.StepLR(opt, 2)\n" + LOOP.format(steps=4)
    got = scanned(tmp_path / "train.py", text + SCALED + "    s.update()\n    sched.step()\n")
    assert notes(got) == []


def test_a_scaler_made_in_the_loop_is_told(tmp_path: Path) -> None:
    text = HEAD + LOOP.format(steps=3) + "    " + SCALER.format(scale=8.0) + SCALED
    got = scanned(tmp_path / "train.py", text + "    s.update()\n")
    assert [f.code for f in notes(got)] == ["FD732"]


def test_deprecated_names_are_told_once_and_only_where_asked_for(tmp_path: Path) -> None:
    text = HEAD + "import warnings\nwarnings.simplefilter('ignore')\n" + LOOP.format(steps=2)
    text = text.replace('torch.autocast("cpu", ', "torch.cpu.amp.autocast(") + PLAIN
    text += "with torch.cpu.amp.autocast():\n    net(x)\n"
    assert notes(scanned(tmp_path / "train.py", text)) == []
    (note,) = notes(scanned(tmp_path / "train.py", text, style=True))
    assert (note.code, len(note.repeats)) == ("FD725", 1)


def test_without_sources_no_line_is_told(tmp_path: Path) -> None:
    text = HEAD + LOOP.format(steps=2) + UNUSED_FACTOR
    assert notes(scanned(tmp_path / "train.py", text, sources=False)) == []


def test_what_fails_becomes_a_caution_and_costs_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(module, "script_notes", broken)
    got = scanned(tmp_path / "train.py", HEAD + LOOP.format(steps=2) + UNUSED_FACTOR)
    assert notes(got) == []
    assert "script-not-read" in [w.slug for w in got.warnings]


def test_of_many_files_the_nearest_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [str(tmp_path / f"m{i}.py") for i in range(101)]
    monkeypatch.setattr(module, "own_files", lambda lines: files)
    for path in files:
        Path(path).write_text("import torch\n")
    script = ScriptText("train.py", "import torch\n")
    texts = texts_beside(script, SourceLines(str(tmp_path)))
    assert len(texts) == 101
    assert texts[-1] is script
    assert len(texts_beside(ScriptText("m", ""), SourceLines(str(tmp_path)))) == 100


@pytest.mark.parametrize("call", ["opt.zero_grad()", "opt.zero_grad(set_to_none=False)"])
def test_what_the_text_alone_proves_is_an_error_and_its_fix_recommended(
    tmp_path: Path, call: str
) -> None:
    text = HEAD + LOOP.format(steps=3) + f"    loss.backward()\n    {call}\n    opt.step()\n"
    got = scanned(tmp_path / "train.py", text)
    (error,) = notes(got)
    assert (error.code, error.severity) == ("FD733", Severity.ERROR)
    assert got.findings[0] is error
    assert got.recommendation.status is RecommendationStatus.NONE_FOUND
    (cure,) = (got.prescriptions[i] for i in got.recommendation.prescriptions)
    assert got.findings.index(error) in cure.treats
    assert f"+    opt.step()\n     {call}\n" in cure.remedy.change
