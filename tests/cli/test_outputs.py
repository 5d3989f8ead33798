"""Output files: refused early, written whole, never lost."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from fp16doctor.cli.outputs import choose, for_rank, named
from fp16doctor.errors import OutputError, UsageError


def test_defaults_are_named_after_the_script_in_the_folder_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page, document = choose(None, None, "train")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # as a script may
    page.write("<p>")
    document.write("{}")
    assert (tmp_path / "fp16doctor-train.html").read_text() == "<p>"
    assert (tmp_path / "fp16doctor-train.json").read_text() == "{}"
    assert page.shown == "fp16doctor-train.html"


@pytest.mark.parametrize(
    ("page", "document", "chosen"),
    [
        ("sub/x.html", None, ("sub/x.html", "sub/x.json")),
        (None, "sub/x.json", ("sub/x.html", "sub/x.json")),
        ("sub/x", None, ("sub/x", "sub/x.json")),
        ("v1.2.html", None, ("v1.2.html", "v1.2.json")),
        ("x.json", None, ("x.json", "x.json.json")),  # never onto the page itself
        ("a.html", "b.json", ("a.html", "b.json")),
        ("-", None, ("-", "fp16doctor-train.json")),
        (None, "-", ("fp16doctor-train.html", "-")),
        ("/dev/null", None, ("/dev/null", "fp16doctor-train.json")),
    ],
)
def test_what_is_not_named_goes_beside_what_is(
    page: str | None, document: str | None, chosen: tuple[str, str]
) -> None:
    assert tuple(output.shown for output in choose(page, document, "train")) == chosen


@pytest.mark.parametrize("name", ["missing/x.html", "file/x.html", "folder"])
def test_place_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    page, _ = choose(str(tmp_path / name), None, "train")
    with pytest.raises(UsageError) as caught:
        page.check()
    assert caught.value.slug == "unwritable-output"


def test_check_leaves_no_trace(tmp_path: Path) -> None:
    page, _ = choose(str(tmp_path / "x.html"), None, "train")
    page.check()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", [("x", "x"), ("x", "./x"), ("-", "-")])
def test_one_file_for_both_is_refused(names: tuple[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        choose(*names, "train")
    assert caught.value.slug == "same-output"


def test_old_report_stays_whole_where_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spare"))
    (tmp_path / "spare").mkdir()

    def full(source: str, destination: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    page, _ = choose(str(target), None, "train")
    with pytest.raises(OutputError, match="No space left on device") as caught:
        page.write("new")
    assert target.read_text() == "old"
    [saved] = (tmp_path / "spare").iterdir()
    assert saved.read_text() == "new"
    assert repr(str(saved)) in caught.value.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "spare"]


def test_link_and_device_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to(tmp_path / "real.html")
    page, device = choose(str(tmp_path / "link.html"), os.devnull, "train")
    for output in (page, device):
        output.check()
        output.write("text")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_text() == "text"
    assert not os.path.isfile(os.devnull)


def test_lone_surrogate_does_not_lose_the_report(tmp_path: Path) -> None:
    page, _ = choose(str(tmp_path / "x.html"), None, "train")
    page.write("argv \udcff")
    assert (tmp_path / "x.html").read_text() == "argv \\udcff"


def test_dash_is_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    page, _ = choose("-", None, "train")
    page.check()
    page.write("<p>")
    assert capsys.readouterr().out == "<p>"


@pytest.mark.parametrize("given", ["page.html", "-"])
def test_rank_0_has_the_plain_file(given: str) -> None:
    assert for_rank(named(given), 0) == named(given)


def test_another_rank_has_a_file_of_its_own() -> None:
    assert for_rank(named("out.d/page.html"), 3).shown == "out.d/page.rank3.html"
    assert for_rank(named("-"), 1).path == os.devnull
