"""``fp16doctor lint`` as a user calls it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fp16doctor.cli.explain import explain
from fp16doctor.cli.lint import lint
from fp16doctor.errors import UsageError

CLIPPED = """\
import torch

scaler = torch.amp.GradScaler("cuda")
for x in loader:
    scaler.scale(model(x)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(lint, [str(a) for a in arguments], standalone_mode=False)


def test_a_finding_has_line_reason_and_fix(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CLIPPED)
    done = run(script)
    assert done.return_value == 0
    lines = done.output.splitlines()
    assert lines[0].startswith("error FD701 clipped-before-unscale: gradients are clipped before")
    assert f"{script}:6" in done.output
    assert "          +    scaler.unscale_(optimizer)" in lines
    assert lines[-1] == "1 file · 1 finding: 1 error"


def test_a_script_without_a_mistake_has_no_finding(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        CLIPPED.replace("    torch.nn", "    scaler.unscale_(optimizer)\n    torch.nn")
    )
    assert run(tmp_path).output == "1 file · 0 findings\n"


def test_folders_are_searched_and_what_is_no_python_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text(CLIPPED)
    (tmp_path / "a.py").write_text("import torch\ndef :\n")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "c.py").write_text(CLIPPED)
    (tmp_path / "notes.txt").write_text("def :")
    document = json.loads(run("--format", "json", tmp_path).output)
    assert document["n_files"] == 2
    assert [(f["code"], f["line"], f["severity"]) for f in document["findings"]] == [
        ("FD701", 6, "error")
    ]
    assert [(Path(u["file"]).name, u["line"]) for u in document["unread"]] == [("a.py", 2)]


def test_the_encoding_line_of_a_file_is_honoured(tmp_path: Path) -> None:
    script = tmp_path / "latin.py"
    script.write_bytes(b"# coding: latin-1\n# \xe9\n" + CLIPPED.encode())
    assert "latin.py:8" in run(script).output
    script.write_bytes(b"# \xe9\n" + CLIPPED.encode())
    assert "not read" in run(script).output


@pytest.mark.parametrize(
    ("fail_on", "text", "status"),
    [
        ("never", CLIPPED, 0),
        ("error", CLIPPED, 3),
        ("error", "import torch\n", 0),
        ("error", "import torch\nscaler = torch.cuda.amp.GradScaler()\n", 0),
        ("warning", "import torch\ndef :\n", 3),
    ],
)
def test_fail_on(tmp_path: Path, fail_on: str, text: str, status: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert run("--fail-on", fail_on, script).return_value == status


def test_github_lines_are_escaped(tmp_path: Path) -> None:
    script = tmp_path / "a,b%.py"
    script.write_text(CLIPPED)
    (line,) = run("--format", "github", script).output.splitlines()
    assert line.startswith(f"::error file={tmp_path}/a%2Cb%25.py,line=6,col=5,title=FD701 clipped")


def test_hostile_text_reaches_no_terminal(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CLIPPED.replace("1.0)", "1.0)  # \x1b[31m\u202e"))
    output = run(script).output
    assert "\x1b" not in output
    assert "\u202e" not in output


@pytest.mark.parametrize("arguments", [[], ["nowhere.py"]])
def test_nothing_to_read_is_a_usage_error(arguments: list[str]) -> None:
    assert isinstance(run(*arguments).exception, UsageError)


def test_explain_shows_a_script_rule_and_both_of_one_name() -> None:
    shown = CliRunner().invoke(explain, ["FD706"], standalone_mode=False).output
    assert shown.startswith("FD706 cancelled-loss-scale\n")
    both = CliRunner().invoke(explain, ["unscaled-twice"], standalone_mode=False).output
    assert "FD406 unscaled-twice\n" in both
    assert "FD704 unscaled-twice\n" in both


@pytest.mark.parametrize("end", ["\n", "", "\n\n# the end\n"], ids=["line end", "none", "blank"])
@pytest.mark.parametrize("name", ["train.py", "a folder/train.py"])
def test_the_fix_in_the_json_is_a_patch_that_git_applies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    script = Path(name)
    script.parent.mkdir(exist_ok=True)
    text = CLIPPED.replace("    scaler.update()\n", "").rstrip("\n") + end
    script.write_text(text.replace("    torch.nn", "\n    torch.nn"))
    findings = json.loads(run("--format", "json", script).output)["findings"]
    assert {f["code"] for f in findings} == {"FD701", "FD702"}
    for finding in findings:
        subprocess.run(["git", "apply", "-"], input=finding["fix"], text=True, check=True)
    assert "scaler.unscale_(optimizer)" in script.read_text()
    assert "scaler.update()" in script.read_text()
    assert run(script).output == "1 file · 0 findings\n"
