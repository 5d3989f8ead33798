"""The runner: a script cannot tell it from Python itself, and comes back with its outcome."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from fp16doctor.errors import Fp16DoctorError, UsageError
from fp16doctor.record.script import ScriptRun, ScriptSyntaxError, Target, prepare, show_exception
from fp16doctor.schema.recording import OutcomeKind

SCRIPTS = Path(__file__).parents[1] / "scripts"
ROOT = Path(__file__).parents[2]
DRIVER = """
import sys
from contextlib import nullcontext
from fp16doctor.record.script import Target, prepare, show_exception
is_module, name, *argv = sys.argv[1:]
run = prepare(Target(name, is_module == "-m", tuple(argv))).run(nullcontext())
sys.stdout.flush()
sys.exit(show_exception(run))
"""


def start(*command: str, cwd: Path = SCRIPTS) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def both(*command: str, cwd: Path = SCRIPTS) -> tuple[subprocess.CompletedProcess[str], ...]:
    """The command under plain Python and under the runner; a script has no -m in front."""
    ours = command if command[0] == "-m" else ("", *command)
    return start(*command, cwd=cwd), start("-c", DRIVER, *ours, cwd=cwd)


@pytest.fixture
def interpreter() -> Iterator[None]:
    """Put back what a run inside this process leaves installed for the script."""
    main, argv, path, hook = sys.modules["__main__"], sys.argv, list(sys.path), sys.excepthook
    yield
    sys.modules["__main__"], sys.argv, sys.path[:], sys.excepthook = main, argv, path, hook


def run_here(folder: Path, text: str, watch: object = None, *argv: str) -> ScriptRun:
    script = folder / "train.py"
    script.write_text(text)
    prepared = prepare(Target(str(script), False, argv))
    return prepared.run(watch or nullcontext())  # type: ignore[arg-type]


# What a script can see of its start


@pytest.mark.parametrize(
    "command",
    [
        ("probe.py", "--lr", "1", "--", "-x", ""),
        ("./probe.py",),
        (str(SCRIPTS / "probe.py"), "*.py"),
        ("toypkg/probe.py",),
        ("toypkg/../probe.py",),
        ("foldered", "a"),
        ("-m", "probe", "--", "-m"),
        ("-m", "toypkg.probe", "a"),
        ("-m", "toypkg"),
        ("-m", "foldered"),
    ],
)
def test_script_sees_the_same_start(command: tuple[str, ...]) -> None:
    plain, ours = both(*command)
    assert plain.returncode == 0, plain.stderr
    assert ours.stdout == plain.stdout
    assert (ours.stderr, ours.returncode) == ("", 0)


def test_linked_script_sees_the_folder_of_the_file_itself(tmp_path: Path) -> None:
    (tmp_path / "link.py").symlink_to(SCRIPTS / "probe.py")
    plain, ours = both("link.py", cwd=tmp_path)
    assert json.loads(plain.stdout)["path"][0] == str(SCRIPTS)
    assert ours.stdout == plain.stdout


def test_safe_path_leaves_the_search_path_alone() -> None:
    if sys.version_info < (3, 11):
        pytest.skip("-P is new in Python 3.11")
    plain = start("-P", "probe.py")
    ours = start("-P", "-c", DRIVER, "", "probe.py")
    assert ours.stdout == plain.stdout


def test_future_imports_of_the_runner_do_not_leak(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def f(x: undefined): pass\n")
    plain, ours = both("train.py", cwd=tmp_path)
    assert "NameError: name 'undefined'" in plain.stderr
    assert ours.stderr == plain.stderr


# How it ends


@pytest.mark.parametrize(
    "argument", ["nothing", "zero", "three", "true", "wraps", "negative", "text", "tuple"]
)
def test_exit_is_as_under_python(argument: str) -> None:
    plain, ours = both("exiting.py", argument)
    assert ours.returncode == plain.returncode
    assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)


@pytest.mark.parametrize(
    "argument",
    [
        "plain",
        "caused",
        "during_another",
        "in_a_library",
        "unprintable",
        "own_hook",
        "hook_that_exits",
        "hook_that_fails",
        "last_value",
    ],
)
def test_exception_is_shown_as_under_python(argument: str) -> None:
    plain, ours = both("raising.py", argument)
    assert plain.returncode == (5 if argument == "hook_that_exits" else 1)
    assert ours.returncode == plain.returncode
    assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)


def test_interrupt_is_shown_as_under_python_and_gives_130() -> None:
    plain, ours = both("interrupted.py")
    assert "KeyboardInterrupt" in plain.stderr
    assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)
    assert ours.returncode == 130


def test_import_error_inside_a_module_is_the_scripts_own() -> None:
    plain, ours = both("-m", "toypkg.failing")
    assert "No module named 'a_module_that_does_not_exist'" in ours.stderr
    assert ours.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]
    assert ours.returncode == plain.returncode == 1


def test_import_error_inside_a_package_above_is_the_scripts_own() -> None:
    plain, ours = both("-m", "brokenpkg.train")
    users = [line for line in plain.stderr.splitlines() if "runpy" not in line]
    assert ours.stderr.splitlines() == users
    assert ours.returncode == plain.returncode == 1


# What works only where __main__ stays installed


@pytest.mark.parametrize(
    "command",
    [
        ("pickling.py",),
        ("forking.py",),
        ("spawning.py", "fork"),
        ("spawning.py", "spawn"),
        ("-m", "toypkg.spawning", "spawn"),
        ("arguments.py", "data", "--lr", "2", "--steps", "3", "-o", "x", "-v"),
        ("arguments.py", "--mistyped"),
    ],
)
def test_behaves_as_under_python(command: tuple[str, ...]) -> None:
    plain, ours = both(*command)
    assert ours.stdout == plain.stdout
    assert (ours.stderr, ours.returncode) == (plain.stderr, plain.returncode)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers_find_the_scripts_classes(method: str) -> None:
    ours = start("-c", DRIVER, "", "workers.py", method)
    assert ours.returncode == 0, ours.stderr
    assert len(ours.stdout.splitlines()) == 2


# Names that cannot be run


@pytest.mark.parametrize(
    ("name", "is_module", "slug"),
    [
        ("nowhere.py", False, "no-such-script"),
        ("probe.py/x.py", False, "no-such-script"),
        ("toypkg/inner", False, "is-a-directory"),
        ("nowhere", True, "no-such-module"),
        ("nowhere.train", True, "no-such-module"),
        ("toypkg.nowhere", True, "no-such-module"),
        ("probe.py", True, "no-such-module"),
        (".probe", True, "no-such-module"),
        ("toypkg.inner", True, "no-main-module"),
        ("math", True, "no-python-code"),
    ],
)
@pytest.mark.usefixtures("interpreter")
def test_name_that_cannot_be_run_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, name: str, is_module: bool, slug: str
) -> None:
    monkeypatch.chdir(SCRIPTS)
    with pytest.raises(UsageError) as caught:
        prepare(Target(name, is_module, ()))
    assert caught.value.slug == slug
    assert repr(name) in caught.value.message


@pytest.mark.parametrize("text", [b"x = (\n", b"x = 1\x00", b"# coding: nowhere\n", b"x = '\xff'"])
def test_script_that_does_not_compile_is_told_apart(tmp_path: Path, text: bytes) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(text)
    with pytest.raises(ScriptSyntaxError) as caught:
        prepare(Target(str(script), False, ()))
    assert (caught.value.slug, caught.value.exit_code) == ("syntax-error", 1)
    assert isinstance(caught.value.__cause__, (SyntaxError, ValueError))
    assert isinstance(caught.value, Fp16DoctorError)


# Outcomes


@pytest.mark.usefixtures("interpreter")
def test_raised_outcome_names_the_users_innermost_line(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "loss.py").write_text(
        "import json\nclass Loss:\n    def call(self):\n        json.loads('{')\n"
    )
    run = run_here(tmp_path, "from lib.loss import Loss\nLoss().call()\n")
    outcome = run.outcome
    assert (outcome.kind, outcome.status) == (OutcomeKind.RAISED, 1)
    assert outcome.exception == "JSONDecodeError"
    assert outcome.message is not None
    assert "property name" in outcome.message
    assert outcome.source is not None
    assert (outcome.source.file, outcome.source.line) == (os.path.join("lib", "loss.py"), 4)
    assert outcome.source.text == "json.loads('{')"
    assert outcome.source.function.endswith("call")


@pytest.mark.parametrize(
    ("text", "kind", "status"),
    [
        ("x = 1", OutcomeKind.FINISHED, 0),
        ("raise SystemExit", OutcomeKind.FINISHED, 0),
        ("raise SystemExit(9)", OutcomeKind.EXITED, 9),
        ("raise SystemExit('text')", OutcomeKind.EXITED, 1),
        ("raise KeyboardInterrupt", OutcomeKind.INTERRUPTED, 130),
        ("raise GeneratorExit", OutcomeKind.RAISED, 1),
    ],
)
@pytest.mark.usefixtures("interpreter")
def test_outcome_says_how_it_ended(
    tmp_path: Path, text: str, kind: OutcomeKind, status: int
) -> None:
    run = run_here(tmp_path, text)
    assert (run.outcome.kind, run.outcome.status) == (kind, status)
    assert (run.exception is None) is (kind is OutcomeKind.FINISHED)


STOPPING = "from fp16doctor.record.script import StopScript\n"


@pytest.mark.parametrize(
    "text",
    [
        "raise StopScript",
        "try:\n    raise StopScript\nexcept Exception:\n    raise SystemExit(8)",
        "try:\n    raise StopScript\nfinally:\n    1 / 0  # clean-up that misses the rest",
        "try:\n    raise StopScript\nexcept BaseException:\n    raise SystemExit(8)",
    ],
)
@pytest.mark.usefixtures("interpreter")
def test_stopped_script_ends_with_status_0_and_no_traceback(
    tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_here(tmp_path, STOPPING + text)
    assert (run.outcome.kind, run.outcome.status) == (OutcomeKind.STOPPED, 0)
    assert show_exception(run) == 0
    assert capfd.readouterr().err == ""


# The watch


@pytest.mark.usefixtures("interpreter")
def test_watch_surrounds_the_script_and_sees_its_exception(tmp_path: Path) -> None:
    seen: list[str] = []

    @contextmanager
    def watch() -> Iterator[None]:
        seen.append("in")
        try:
            yield
        except ValueError as error:
            seen.append(str(error))
            raise
        finally:
            seen.append("out")

    run = run_here(tmp_path, "raise ValueError('mine')", watch())
    assert seen == ["in", "mine", "out"]
    assert isinstance(run.exception, ValueError)


class FailingWatch:
    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        if self.where == "enter":
            raise RuntimeError("watch")

    def __exit__(self, *ended: object) -> None:
        raise RuntimeError("watch")


@pytest.mark.usefixtures("interpreter")
def test_result_survives_a_watch_that_fails_at_the_end(tmp_path: Path) -> None:
    run = run_here(tmp_path, "raise SystemExit(7)", FailingWatch("exit"))
    assert run.outcome.status == 7
    assert isinstance(run.watch_failure, RuntimeError)


@pytest.mark.usefixtures("interpreter")
def test_script_is_not_started_where_the_watch_cannot_begin(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="watch"):
        run_here(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')", FailingWatch("enter"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("interpreter")
def test_a_forked_child_does_not_end_its_parents_watch(tmp_path: Path) -> None:
    left = tmp_path / "left"

    @contextmanager
    def watch() -> Iterator[None]:
        try:
            yield
        finally:
            with left.open("a") as stream:
                stream.write(f"{os.getpid()}\n")

    here = os.getpid()
    run = run_here(
        tmp_path, "import os\nchild = os.fork()\nif not child: raise SystemExit", watch()
    )
    if os.getpid() != here:
        os._exit(0)
    os.wait()
    assert run.outcome.kind is OutcomeKind.FINISHED
    assert left.read_text().split() == [str(here)]
