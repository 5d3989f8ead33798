"""Options of ``scan`` behind the script's name: whose they are, and when that is worth a line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fp16doctor.cli.misplaced import misplaced, reads_command_line
from fp16doctor.cli.scan import scan
from fp16doctor.record.script import Target, prepare

PARSER = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args()\n"


def hint(folder: Path, text: str, *argv: str) -> str:
    script = folder / "train.py"
    script.write_text(text)
    return misplaced(prepare(Target(str(script), False, argv)), scan.params)


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (("--steps", "5"), "--steps 5 {}"),
        (("a", "--steps=5", "--lr", "2"), "--steps=5 {} a --lr 2"),
        (("--confirm", "x", "--no-source"), "--confirm --no-source {} x"),
        (("--steps", "5", "--", "--json", "x"), "--steps 5 {} -- --json x"),
        (("--steps",), "--steps {}"),
    ],
)
def test_the_command_that_was_meant_is_written_out(
    tmp_path: Path, argv: tuple[str, ...], command: str
) -> None:
    said = hint(tmp_path, PARSER, *argv)
    script = str(tmp_path / "train.py")
    assert f"`fp16doctor scan {command.format(script)}`" in said
    assert said.endswith("[script-option]")


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        (PARSER, ("--lr", "1", "-v", "-o", "x")),
        (PARSER, ("--", "--steps", "5")),
        (PARSER.replace("--lr", "--steps"), ("--steps", "5")),
        ("import fire\nfire.Fire(lambda steps: 0)\n", ("--steps", "5")),
    ],
)
def test_what_is_the_scripts_own_is_not_spoken_of(
    tmp_path: Path, text: str, argv: tuple[str, ...]
) -> None:
    assert hint(tmp_path, text, *argv) == ""


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("print(1)\n", False),
        (PARSER, True),
        ("import sys\nprint(sys.argv)\n", True),
        ("from mine import get_args\n", True),
    ],
)
def test_a_script_that_looks_at_its_arguments_is_known(
    tmp_path: Path, text: str, reads: bool
) -> None:
    (tmp_path / "train.py").write_text(text)
    assert reads_command_line(prepare(Target(str(tmp_path / "train.py"), False, ()))) is reads


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize(
    ("text", "status"), [(PARSER, 2), ("print('ran')\n", 0), ("raise SystemExit(2)\n", 2)]
)
def test_it_is_said_on_stderr_and_changes_nothing(
    tmp_path: Path, text: str, status: int, module: bool
) -> None:
    (tmp_path / "train.py").write_text(text)
    front = ["-m", "train"] if module else ["train.py"]

    def done(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    plain = done(*front, "--steps", "5")
    watched = done("-m", "fp16doctor", "scan", *front, "--steps", "5")
    assert watched.returncode == plain.returncode == status
    assert watched.stdout == plain.stdout
    said = "`fp16doctor scan --steps 5 " + " ".join(front) + "`"
    assert watched.stderr.count("[script-option]") == 1
    assert said in watched.stderr
    assert "[script-option]" not in done("-m", "fp16doctor", "scan", "-q", *front, "x").stderr
