"""The command line as a user calls it: the script's behaviour is kept, the report is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[1]
Done = subprocess.CompletedProcess[str]
# What an installed fp16doctor command consists of.
COMMAND = "import sys\nfrom fp16doctor.cli.main import main\nsys.exit(main())\n"
HEAVY = ("torch", "numpy", "jinja2", "matplotlib", "rich", "safetensors")


def python(folder: Path, *command: str) -> Done:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def doctor(folder: Path, *arguments: str) -> Done:
    return python(folder, "-m", "fp16doctor", *arguments)


def scan(folder: Path, script: str, *arguments: str, options: tuple[str, ...] = ()) -> Done:
    return doctor(folder, "scan", *options, str(SCRIPTS / script), *arguments)


def saved(folder: Path, stem: str) -> dict[str, Any]:
    assert "<html" in (folder / f"fp16doctor-{stem}.html").read_text(encoding="utf-8")
    text = (folder / f"fp16doctor-{stem}.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def users_frames(done: Done) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith(f'  File "{SCRIPTS}')]


# The command itself


def test_help_names_the_commands_and_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom fp16doctor.cli.main import main\n"
        "try:\n    main(['--help'])\nfinally:\n"
        f"    print('loaded:', *(name for name in {HEAVY} if name in sys.modules))"
    )
    done = python(tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"
    assert {"scan", "report", "explain"} <= set(done.stdout.split())


def test_version(tmp_path: Path) -> None:
    import fp16doctor

    versions = f"torch {version('torch')}, Python {sys.version.split()[0]}"
    said = f"fp16doctor {fp16doctor.__version__} ({versions})\n"
    assert doctor(tmp_path, "--version").stdout == said


def test_shell_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_FP16DOCTOR_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "fp16doctor sc")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert "scan" in doctor(tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("train.py",), 2, "fp16doctor scan train.py"),
        (("scan",), 2, "[no-script-given]"),
        (("scan", "--reprot", "train.py"), 2, "--reprot"),
        (("scan", "nowhere.py"), 2, "[no-such-script]"),
        (("scan", "."), 2, "[is-a-directory]"),
        (("scan", "-m", "nowhere"), 2, "[no-such-module]"),
        (("scan", "--steps", "-3", "train.py"), 2, "[bad-steps]"),
        (("scan", "--steps", "many", "train.py"), 2, "many"),
        (("scan", "-q", "-v", "train.py"), 2, "[quiet-and-verbose]"),
        (("scan", "-o", "nowhere/x.html", "train.py"), 2, "[unwritable-output]"),
        (("scan", "--json", "nowhere/x.json", "train.py"), 2, "[unwritable-output]"),
        (("scan", "-o", "x", "--json", "x", "train.py"), 2, "[same-output]"),
        (("scan", "broken.py"), 1, "[syntax-error]"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], status: int, words: str
) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w')\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    done = doctor(tmp_path, *arguments)
    assert done.returncode == status
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.py", "train.py"]


def test_syntax_error_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    plain = python(tmp_path, "broken.py")
    done = doctor(tmp_path, "scan", "broken.py")
    assert done.stderr.startswith(plain.stderr)
    assert len(done.stderr.splitlines()) == len(plain.stderr.splitlines()) + 1
    assert "line 2" in done.stderr.splitlines()[-1]


# The script is run as by Python


@pytest.mark.parametrize("installed", [False, True])
@pytest.mark.parametrize(
    "command",
    [
        ("probe.py", "--lr", "1", "-o", "x", "--", "-q"),
        ("-m", "toypkg.probe", "--json", "x"),
    ],
)
def test_script_sees_the_same_start(
    tmp_path: Path, command: tuple[str, ...], installed: bool
) -> None:
    launcher = tmp_path / "fp16doctor"
    launcher.write_text(COMMAND)
    front = (str(launcher),) if installed else ("-m", "fp16doctor")
    reports = ("-o", str(tmp_path / "x.html"), "--json", str(tmp_path / "x.json"))
    plain = python(SCRIPTS, *command)
    done = python(SCRIPTS, *front, "scan", *reports, *command)
    assert plain.returncode == 0
    assert done.stdout == plain.stdout
    assert done.returncode == 0, done.stderr


def test_losses_are_the_same_to_the_last_digit(tmp_path: Path) -> None:
    plain = python(tmp_path, str(SCRIPTS / "clean.py"))
    done = scan(tmp_path, "clean.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    document = saved(tmp_path, "clean")
    assert [step["step"] for step in document["steps"]] == [0, 1, 2, 3, 4, 5]
    assert document["run"]["outcome"]["kind"] == "finished"
    assert [f for f in document["findings"] if f["severity"] == "error"] == []


def test_model_of_the_script_can_be_saved_and_loaded(tmp_path: Path) -> None:
    assert scan(tmp_path, "clean.py", "--save", "model.pt").returncode == 0
    code = "import torch; print(type(torch.load('model.pt', weights_only=False)).__name__)"
    assert python(tmp_path, "-c", code).stdout == "Sequential\n"


@pytest.mark.parametrize("command", [("pickling.py",), ("forking.py",)])
def test_behaves_as_under_python(tmp_path: Path, command: tuple[str, ...]) -> None:
    plain = python(tmp_path, str(SCRIPTS / command[0]), *command[1:])
    done = scan(tmp_path, *command)
    assert done.stdout == plain.stdout
    assert done.returncode == plain.returncode


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers(tmp_path: Path, method: str) -> None:
    plain = python(tmp_path, str(SCRIPTS / "workers.py"), method)
    done = scan(tmp_path, "workers.py", method)
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert len(saved(tmp_path, "workers")["steps"]) == 2


# However it ends, there is a report


@pytest.mark.parametrize(("argument", "status"), [("negative", 255), ("text", 1)])
def test_exit_status_is_the_scripts(tmp_path: Path, argument: str, status: int) -> None:
    done = scan(tmp_path, "exiting.py", argument)
    assert done.returncode == status
    assert saved(tmp_path, "exiting")["run"]["outcome"]["kind"] == "exited"
    assert ("the data folder is empty\n" in done.stderr) is (argument == "text")


def test_exception_inside_the_model_is_shown_as_by_python(tmp_path: Path) -> None:
    plain = python(tmp_path, str(SCRIPTS / "crashing.py"))
    done = scan(tmp_path, "crashing.py")
    assert done.returncode == plain.returncode == 1
    # torch's own frames differ: it calls modules in another way where hooks are registered.
    assert users_frames(done) == users_frames(plain) != []
    assert plain.stderr.splitlines()[-1] in done.stderr.splitlines()
    assert str(ROOT / "fp16doctor") not in done.stderr
    outcome = saved(tmp_path, "crashing")["run"]["outcome"]
    assert (outcome["kind"], outcome["exception"]) == ("raised", "RuntimeError")
    assert (outcome["source"]["file"], outcome["source"]["line"]) == ("crashing.py", 12)
    assert len(saved(tmp_path, "crashing")["steps"]) >= 2


@pytest.mark.parametrize("replaced", ["torch.stack", "json.dumps", "math.isfinite"])
def test_a_function_that_the_script_replaces_costs_neither_report_nor_status(
    replaced: str, tmp_path: Path
) -> None:
    plain = python(tmp_path, str(SCRIPTS / "replacing.py"), replaced)
    done = scan(tmp_path, "replacing.py", replaced, options=("--budget", "0"))
    assert done.returncode == plain.returncode == 7
    assert done.stdout == plain.stdout
    assert "internal-error" not in done.stderr
    document = saved(tmp_path, "replacing")
    assert [f["code"] for f in document["findings"]][:1] == ["FD101"]


def test_ctrl_c_gives_130_and_a_report(tmp_path: Path) -> None:
    done = scan(tmp_path, "interrupted.py", "train")
    assert done.returncode == 130
    assert "KeyboardInterrupt" in done.stderr
    document = saved(tmp_path, "interrupted")
    assert document["run"]["outcome"]["kind"] == "interrupted"
    assert len(document["steps"]) == 1


def test_script_that_never_trains_is_no_failure(tmp_path: Path) -> None:
    done = scan(tmp_path, "never_trains.py")
    assert (done.returncode, done.stdout) == (0, "6\n")
    assert "[no-steps]" in done.stderr
    assert saved(tmp_path, "never_trains")["steps"] == []


def test_training_in_another_thread_is_not_called_no_training(tmp_path: Path) -> None:
    done = scan(tmp_path, "threaded.py")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "3 optimizer steps ran in another thread, which was not watched" in done.stderr
    assert "[other-thread]" in done.stderr
    assert "no optimizer step was seen" not in done.stderr
    assert [w["slug"] for w in saved(tmp_path, "threaded")["warnings"]] == ["other-thread"]


def test_overflow_is_found_and_reaches_fail_on(tmp_path: Path) -> None:
    done = scan(tmp_path, "overflowing.py", "quietly", options=("--fail-on", "error"))
    assert done.returncode == 3, done.stderr
    assert len(done.stdout.splitlines()) == 5
    [first, *_] = saved(tmp_path, "overflowing")["findings"]
    assert (first["severity"], first["site"]["step"]) == ("error", 2)
    assert any(first["code"] in line for line in done.stderr.splitlines())


def test_scripts_own_failure_wins_over_fail_on(tmp_path: Path) -> None:
    done = scan(tmp_path, "overflowing.py", "raising", options=("--fail-on", "error"))
    assert done.returncode == 1
    assert "FloatingPointError: loss is inf at step 2" in done.stderr
    assert saved(tmp_path, "overflowing")["findings"]


# Options


def test_steps_stop_the_script_and_warn_of_what_it_saves(tmp_path: Path) -> None:
    done = scan(tmp_path, "clean.py", "--save", "model.pt", options=("--steps", "2"))
    assert done.returncode == 0, done.stderr
    document = saved(tmp_path, "clean")
    assert document["run"]["outcome"]["kind"] == "stopped"
    assert len(document["steps"]) == 2
    assert not (tmp_path / "model.pt").exists()
    assert "line 23" in done.stderr.splitlines()[0]
    assert "[script-saves]" in done.stderr.splitlines()[0]


def test_page_on_standard_output_follows_the_scripts_own(tmp_path: Path) -> None:
    done = scan(tmp_path, "never_trains.py", options=("-o", "-"))
    assert done.stdout.startswith("6\n<!")
    assert done.stdout.rstrip().endswith("</html>")
    assert [path.name for path in tmp_path.iterdir()] == ["fp16doctor-never_trains.json"]


def test_quiet_says_nothing(tmp_path: Path) -> None:
    done = scan(tmp_path, "clean.py", options=("-q",))
    assert (done.returncode, done.stderr) == (0, "")
    saved(tmp_path, "clean")


def test_no_source_leaves_the_scripts_lines_out(tmp_path: Path) -> None:
    scan(tmp_path, "overflowing.py", "raising")
    told = (tmp_path / "fp16doctor-overflowing.json").read_text(encoding="utf-8")
    scan(tmp_path, "overflowing.py", "raising", options=("--no-source",))
    silent = (tmp_path / "fp16doctor-overflowing.json").read_text(encoding="utf-8")
    page = (tmp_path / "fp16doctor-overflowing.html").read_text(encoding="utf-8")
    assert "raise FloatingPointError(" in told
    for text in (silent, page):
        assert "raise FloatingPointError(" not in text
        assert "model(inputs)" not in text
