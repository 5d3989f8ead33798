"""Writes go elsewhere; what a script reads back is what it wrote; the folder stays as it was."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fp16doctor.apply.redirect import Redirect
from fp16doctor.apply.redirect_calls import redirected


@pytest.fixture
def redirect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Redirect]:
    """A working folder with one file and one folder, and what it holds afterwards."""
    work, store = tmp_path / "work", tmp_path / "store"
    (work / "old").mkdir(parents=True)
    store.mkdir()
    (work / "log.txt").write_text("before\n")
    (work / "old" / "a.txt").write_text("a")
    monkeypatch.chdir(work)
    yield Redirect(str(work), str(store))
    found = {str(p.relative_to(work)): p.read_text() for p in work.rglob("*") if p.is_file()}
    assert found == {"log.txt": "before\n", "old/a.txt": "a"}
    assert {p.name for p in work.iterdir()} == {"log.txt", "old"}


def test_writing_appending_and_reading_back(redirect: Redirect) -> None:
    with redirected(redirect):
        with open("log.txt", "a") as log:
            log.write("after\n")
        with open("new.txt", "w") as new:
            new.write("new")
        assert Path("log.txt").read_text() == "before\nafter\n"
        assert Path("new.txt").read_text() == "new"
        assert sorted(os.listdir()) == ["log.txt", "new.txt", "old"]
        assert Path("new.txt").stat().st_size == 3
    assert redirect.written() == ("log.txt", "new.txt")


def test_checkpoints_in_a_new_folder(redirect: Redirect) -> None:
    with redirected(redirect):
        os.makedirs("runs/one", exist_ok=True)
        torch.save({"w": torch.ones(2)}, "runs/one/model.pt")
        os.replace("runs/one/model.pt", "runs/one/best.pt")
        assert not os.path.exists("runs/one/model.pt")
        assert torch.equal(torch.load("runs/one/best.pt")["w"], torch.ones(2))
        assert os.listdir("runs/one") == ["best.pt"]
        with pytest.raises(FileExistsError):
            os.mkdir("runs")
    assert redirect.written() == ("runs/one/best.pt",)


def test_removing_and_moving_what_was_there(redirect: Redirect) -> None:
    with redirected(redirect):
        os.remove("log.txt")
        assert not os.path.exists("log.txt")
        with pytest.raises(FileNotFoundError):
            Path("log.txt").read_text()
        with pytest.raises(FileNotFoundError):
            os.remove("log.txt")
        os.rename("old/a.txt", "b.txt")
        assert Path("b.txt").read_text() == "a"
        assert os.listdir("old") == []
        shutil.rmtree("old")
        assert not os.path.exists("old/a.txt")
        Path("log.txt").write_text("again")
        assert Path("log.txt").read_text() == "again"


def test_other_folders_are_left_alone(redirect: Redirect, tmp_path: Path) -> None:
    with redirected(redirect):
        (tmp_path / "outside.txt").write_text("x")
        os.close(os.open(str(tmp_path / "low.txt"), os.O_CREAT | os.O_WRONLY))
    assert (tmp_path / "outside.txt").read_text() == "x"
    assert (tmp_path / "low.txt").exists()


def test_a_folder_that_is_not_there_is_still_missed(redirect: Redirect) -> None:
    with redirected(redirect), pytest.raises(FileNotFoundError):
        Path("nowhere/x.txt").write_text("")


def test_nothing_is_left_behind(redirect: Redirect) -> None:
    before = (open, os.stat, os.listdir, torch.save, shutil.rmtree)
    with pytest.raises(ZeroDivisionError), redirected(redirect):
        1 / 0  # noqa: B018
    assert (open, os.stat, os.listdir, torch.save, shutil.rmtree) == before
