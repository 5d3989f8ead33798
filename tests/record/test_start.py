"""What a diagnosis tells of how its script was started."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from fp16doctor.record.digest import sha256_of
from fp16doctor.record.script import PreparedScript, Target, prepare
from fp16doctor.record.start import scan_start


def test_a_script_is_known_again_by_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_bytes(b"pass\r\n")
    start = scan_start(prepare(Target("train.py", False, ())), 3, "cuda")
    assert (start.folder, start.steps, start.device) == (str(tmp_path), 3, "cuda")
    assert (start.file, start.is_module) == (str(tmp_path / "train.py"), False)
    assert start.sha256 == hashlib.sha256(b"pass\r\n").hexdigest()


def test_a_module_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    (tmp_path / "startable.py").write_bytes(b"pass\n")
    start = scan_start(prepare(Target("startable", True, ())), None, "auto")
    assert (start.file, start.is_module) == (str(tmp_path / "startable.py"), True)
    assert start.sha256 == sha256_of(tmp_path / "startable.py")


def test_what_is_no_plain_file_is_not_read_a_second_time() -> None:
    assert scan_start(PreparedScript(Target("x", False, ()), None), None, "auto").sha256 == ""
    start = scan_start(prepare(Target(os.devnull, False, ())), None, "auto")
    assert (start.file, start.sha256) == ("", "")
