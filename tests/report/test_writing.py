"""Files are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fp16doctor.errors import OutputError
from fp16doctor.report import html
from fp16doctor.report.html import template_folder, write_atomically


def test_a_page_is_written_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text("old")
    write_atomically(target, "ü\n")
    assert target.read_bytes() == "ü\n".encode()
    assert list(tmp_path.iterdir()) == [target]


def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    write_atomically(tmp_path / "page.html", "x")
    assert (tmp_path / "page.html").stat().st_mode == plain.stat().st_mode


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_atomically(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "x"


def test_a_device_is_written_to_and_not_replaced() -> None:
    write_atomically(Path(os.devnull), "x")
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("name", [".", "none/page.html", "x" * 300])
def test_a_target_that_cannot_be_written_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="unwritable-output") as caught:
        write_atomically(tmp_path / name, "x")
    assert str(tmp_path) in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_a_failed_rename_leaves_the_old_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "page.html"
    target.write_text("old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OutputError, match="No space left on device"):
        write_atomically(target, "new")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]


def test_installed_templates_win_over_those_of_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "fp16doctor"
    monkeypatch.setattr(html, "_PACKAGE", package)
    with pytest.raises(OutputError, match="no-templates") as caught:
        template_folder()
    installed, checkout = package / "report" / "templates", tmp_path / "reports" / "templates"
    assert str(installed) in caught.value.message
    assert str(checkout) in caught.value.message
    checkout.mkdir(parents=True)
    assert template_folder() == checkout
    installed.mkdir(parents=True)
    assert template_folder() == installed
