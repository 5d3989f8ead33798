"""The line of progress: on a terminal alone, never inside the script's output, gone at the end."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fp16doctor.cli import progress as module
from fp16doctor.cli.progress import ProgressLine
from fp16doctor.cli.voice import Voice

pty = pytest.importorskip("pty", reason="a pseudo-terminal is needed")
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "scripts" / "overflowing.py"
CLEAR = "\r\x1b[K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(module, "_EVERY_S", 0.0)
    monkeypatch.setattr(module, "_EVERY_LINE_S", 0.0)


def line(stream: io.StringIO, *, asked: bool = False, wanted: bool = True) -> ProgressLine:
    return ProgressLine(stream, asked=asked, wanted=wanted, width=40)


def test_it_is_rewritten_in_place_and_taken_back() -> None:
    stream = Terminal()
    shown = line(stream)
    shown.tell("examining step 3")
    shown.tell("examining step 4")
    shown.tell("")
    shown.clear()  # nothing is left to clear
    drawn = [f"{CLEAR}fp16doctor: examining step {step}" for step in (3, 4)]
    assert stream.getvalue() == "".join(drawn) + CLEAR


def test_a_long_one_is_cut_to_a_line() -> None:
    stream = Terminal()
    line(stream).tell("x" * 100)
    assert len(stream.getvalue().removeprefix(CLEAR)) == 39


@pytest.mark.parametrize(
    ("stream", "asked", "wanted", "text"),
    [
        (io.StringIO, False, True, ""),  # a pipe
        (io.StringIO, True, True, "fp16doctor: a\nfp16doctor: b\n"),  # as whole lines
        (Terminal, False, False, ""),  # -q
    ],
)
def test_where_it_is_not_drawn(
    stream: type[io.StringIO], asked: bool, wanted: bool, text: str
) -> None:
    there = stream()
    shown = line(there, asked=asked, wanted=wanted)
    for said in ("a", "a", "b", ""):
        shown.tell(said)
    assert there.getvalue() == text


@pytest.mark.parametrize(
    ("stdout", "asked", "drawn"),
    [(Terminal, False, False), (Terminal, True, True), (io.StringIO, False, True)],
)
def test_while_the_script_runs_it_keeps_off_the_scripts_terminal(
    stdout: type[io.StringIO], asked: bool, drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", stdout())
    stream = Terminal()
    shown = line(stream, asked=asked)
    shown.script_runs = True
    shown.tell("examining step 3")
    assert bool(stream.getvalue()) is drawn
    shown.script_runs = False
    shown.tell("trying bf16")
    assert "trying bf16" in stream.getvalue()


def test_whatever_is_said_takes_it_back_first(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    voice = Voice()
    voice.progress.tell("trying bf16")
    voice.warn("stopped")
    assert stream.getvalue().endswith(f"trying bf16{CLEAR}fp16doctor: stopped\n")


def test_a_stream_that_the_script_closed_ends_nothing() -> None:
    stream = Terminal()
    shown = line(stream)
    stream.close()
    shown.tell("examining step 3")
    shown.clear()


def scanned(folder: Path, *, stdout_too: bool) -> tuple[str, str]:
    """Return what a scan writes to a terminal, and to a pipe in place of its standard output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fp16doctor", "scan", str(SCRIPT), "quietly"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TERM": "xterm"},
        stdout=theirs if stdout_too else subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    piped = "" if process.stdout is None else process.stdout.read().decode()
    seen = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not chunk:
            break
        seen += chunk
    os.close(ours)
    assert process.wait(timeout=100) == 0
    return seen.decode(), piped


def test_on_the_scripts_own_terminal_its_output_stays_whole(tmp_path: Path) -> None:
    plain = subprocess.run(
        [sys.executable, str(SCRIPT), "quietly"], capture_output=True, text=True, check=True
    ).stdout
    seen, _ = scanned(tmp_path, stdout_too=True)
    last = plain.splitlines()[-1]
    before, _, after = seen.partition(last)
    assert CLEAR not in before.replace("\r\n", "\n")
    assert "left for cures" in after
    assert_taken_back(after)


def test_on_another_terminal_it_is_drawn_during_the_run_as_well(tmp_path: Path) -> None:
    seen, piped = scanned(tmp_path, stdout_too=False)
    assert "examining step 0" in seen
    assert "fp16doctor" not in piped
    assert_taken_back(seen)


def assert_taken_back(seen: str) -> None:
    """Every drawing is followed by its clearing, and what is said stands on lines of its own."""
    drawn = re.findall(r"\r\x1b\[Kfp16doctor: [^\r\n]+(.{0,4})", seen, flags=re.S)
    assert drawn
    assert all(rest.startswith(CLEAR) for rest in drawn)
    assert "verdict" in seen.rpartition(CLEAR)[2]
