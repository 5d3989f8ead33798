"""One scan with a stand-in for the pipeline: whatever fails, the script's result is not lost."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fp16doctor.cli.outputs import choose
from fp16doctor.cli.scanning import Request, run_scan
from fp16doctor.cli.voice import Voice
from fp16doctor.record.script import Target
from fp16doctor.report import html, terminal
from fp16doctor.schema.diagnosis import Diagnosis, ReplaySummary
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.prescription import Recommendation, RecommendationStatus
from fp16doctor.schema.recording import Outcome, OutcomeKind, RunInfo, StepInfo

Finish = Callable[[Outcome], Diagnosis]


def diagnosis(outcome: Outcome, *severities: Severity) -> Diagnosis:
    findings = tuple(
        Finding("FD101", "activation-overflow", severity, Fault.OVERFLOW, "what", "cause", None)
        for severity in severities
    )
    return Diagnosis(
        run=RunInfo("train.py", (), outcome, "0", "2", "3", "cpu", "2025-01-01T00:00:00", 1.0),
        formats=(),
        steps=(StepInfo(0),),
        checks=(),
        findings=findings,
        prescriptions=(),
        recommendation=Recommendation(RecommendationStatus.NONE_FOUND, "nothing"),
        replay=ReplaySummary((), None),
    )


class Bench:
    """Runs scans of small scripts in one folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.answer: Finish = diagnosis
        self.exception: BaseException | None = None
        self.during: Callable[[Callable[[Diagnosis], None]], None] = lambda report: None
        self.options: Any = None
        self.originals = nullcontext()
        pipeline = ModuleType("fp16doctor.pipeline")
        vars(pipeline).update(ScanOptions=dict, Session=self._session)
        monkeypatch.setitem(sys.modules, "fp16doctor.pipeline", pipeline)

    def _session(
        self, options: Any, script: str, argv: tuple[str, ...], on_first_error: Any
    ) -> Bench:
        self.options, self._on_first_error = options, on_first_error
        return self

    def __enter__(self) -> None:
        self.during(self._on_first_error)

    def __exit__(self, *ended: object) -> None:
        pass

    def finish(self, outcome: Outcome, exception: BaseException | None) -> Diagnosis:
        self.exception = exception
        return self.answer(outcome)

    def scan(self, text: str, *, fail_on: str = "never", steps: int | None = None) -> int:
        script = self.folder / "train.py"
        script.write_text(text)
        page, document = choose(str(self.page), str(self.document), "train")
        request = Request(Target(str(script), False, ()), page, document, steps, True, fail_on)
        return run_scan(request, Voice())

    @property
    def page(self) -> Path:
        return self.folder / "out.html"

    @property
    def document(self) -> Path:
        return self.folder / "out.json"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    main, argv, path = sys.modules["__main__"], sys.argv, list(sys.path)
    yield Bench(tmp_path, monkeypatch)
    sys.modules["__main__"], sys.argv, sys.path[:] = main, argv, path


def fails(*arguments: Any, **named: Any) -> Any:
    raise LookupError("a fault of ours")


def test_files_are_written_and_the_scripts_status_returned(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    assert bench.scan("print('mine')\nraise SystemExit(7)") == 7
    assert json.loads(bench.document.read_text())["run"]["outcome"]["status"] == 7
    assert "<html" in bench.page.read_text()
    assert capfd.readouterr().out == "mine\n"


@pytest.mark.parametrize(
    ("fail_on", "severity", "status"),
    [
        ("never", Severity.ERROR, 0),
        ("error", Severity.ERROR, 3),
        ("error", Severity.WARNING, 0),
        ("warning", Severity.WARNING, 3),
        ("warning", Severity.ERROR, 3),
        ("warning", Severity.NOTE, 0),
    ],
)
def test_fail_on(bench: Bench, fail_on: str, severity: Severity, status: int) -> None:
    bench.answer = lambda outcome: diagnosis(outcome, severity)
    assert bench.scan("", fail_on=fail_on) == status
    assert bench.scan("raise SystemExit(9)", fail_on=fail_on) == 9


def test_a_step_taken_on_a_lost_loss_reaches_fail_on_without_a_finding(bench: Bench) -> None:
    lost = (StepInfo(0, loss=1.0), StepInfo(1, loss=float("nan")))
    bench.answer = lambda outcome: replace(diagnosis(outcome), findings=(), steps=lost)
    assert bench.scan("", fail_on="error") == 3
    assert bench.scan("", fail_on="never") == 0
    skipped = (StepInfo(0, loss=1.0), StepInfo(1, loss=float("nan"), skipped=True))
    bench.answer = lambda outcome: replace(diagnosis(outcome), findings=(), steps=skipped)
    assert bench.scan("", fail_on="error") == 0


@pytest.mark.parametrize(("script", "status"), [("", 4), ("raise SystemExit(7)", 7)])
def test_examination_that_fails(
    bench: Bench, capfd: pytest.CaptureFixture[str], script: str, status: int
) -> None:
    bench.answer = fails
    assert bench.scan(script) == status
    error = capfd.readouterr().err
    assert "examining the run failed: LookupError: a fault of ours" in error
    assert "[internal-error]" in error
    assert "Traceback" not in error


def test_page_that_cannot_be_rendered_leaves_the_json(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(html, "render_html", fails)
    assert bench.scan("1 / 0") == 1
    assert isinstance(bench.exception, ZeroDivisionError)
    assert bench.document.exists()
    assert not bench.page.exists()
    error = capfd.readouterr().err
    assert "rendering the page failed" in error
    assert "ZeroDivisionError: division by zero" in error


def test_terminal_that_cannot_be_rendered_leaves_both_files(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "render_terminal", fails)
    assert bench.scan("") == 4
    assert bench.document.exists()
    assert bench.page.exists()


def test_interrupt_during_the_examination(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    def interrupted(outcome: Outcome) -> Diagnosis:
        raise KeyboardInterrupt

    bench.answer = interrupted
    assert bench.scan("") == 130
    assert "[interrupted]" in capfd.readouterr().err
    assert bench.scan("raise SystemExit(7)") == 7


def test_folder_that_the_script_removes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = bench.folder / "out"
    folder.mkdir()
    monkeypatch.setattr(Bench, "page", folder / "out.html")
    assert bench.scan(f"import os; os.rmdir({str(folder)!r})") == 4
    assert bench.document.exists()
    error = capfd.readouterr().err
    assert "[output-failed]" in error
    [saved] = [word for word in error.split("'") if word.endswith(".html") and "out-" in word]
    assert "<html" in Path(saved).read_text()
    Path(saved).unlink()


def test_first_error_is_reported_while_the_script_runs(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    found = diagnosis(Outcome(OutcomeKind.FINISHED), Severity.ERROR)
    bench.during = lambda report: report(found)
    script = f"import os, sys; print(os.path.exists({str(bench.page)!r}), file=sys.stderr)"
    assert bench.scan(script) == 0
    first, second = capfd.readouterr().err.splitlines()[:2]
    assert first.startswith("fp16doctor: error FD101 activation-overflow: what")
    assert str(bench.page) in first
    assert second == "True"


def test_ctrl_c_during_the_early_report_reaches_the_script(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, **named: Any) -> str:
        monkeypatch.undo()
        raise KeyboardInterrupt

    found = diagnosis(Outcome(OutcomeKind.FINISHED), Severity.ERROR)
    seen: list[str] = []

    def during(report: Callable[[Diagnosis], None]) -> None:
        monkeypatch.setattr(html, "render_html", interrupted)
        try:
            report(found)
        except KeyboardInterrupt:
            seen.append("reached")

    bench.during = during
    bench.scan("")
    assert seen == ["reached"]


def test_traceback_comes_after_the_files_and_before_the_findings(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    script = (
        "import os, sys\n"
        f"sys.excepthook = lambda *a: print(os.path.exists({str(bench.page)!r}), file=sys.stderr)\n"
        "1 / 0\n"
    )
    hook = sys.excepthook
    try:
        assert bench.scan(script) == 1
    finally:
        sys.excepthook = hook
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "True"
    assert any(line.startswith("report: ") for line in lines[1:])


def test_our_imports_do_not_find_the_scripts_neighbours(bench: Bench) -> None:
    (bench.folder / "neighbour.py").write_text("")

    def looks(outcome: Outcome) -> Diagnosis:
        assert str(bench.folder) not in sys.path
        return diagnosis(outcome)

    bench.answer = looks
    assert bench.scan("import neighbour") == 0
    assert sys.path[0] == str(bench.folder)


def test_steps_warn_of_files_the_script_saves(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    assert bench.scan("if False:\n    torch.save(1, 'x')\n", steps=3) == 0
    warning = capfd.readouterr().err.splitlines()[0]
    assert "line 2" in warning
    assert "torch.save" in warning
    assert warning.endswith("[script-saves]")
    assert bench.options.pop("simulate") in ("never", "unnamed")  # never where there is a GPU
    assert callable(bench.options.pop("progress"))
    start = bench.options.pop("start")
    assert bench.options == {
        "steps": 3,
        "sources": True,
        "budget_s": 45.0,
        "tolerance": 1.0,
        "keeps_bundle": False,
        "style": False,
        "eager": True,
    }
    assert (start.file, start.steps) == (str(bench.folder / "train.py"), 3)
