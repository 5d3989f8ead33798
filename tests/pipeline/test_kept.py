"""The bundle that a diagnosis names is found, and no other file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp16doctor.errors import BundleError
from fp16doctor.pipeline.kept import find_bundle
from fp16doctor.record.digest import sha256_of
from fp16doctor.schema.start import BundleFile


@pytest.fixture
def named(tmp_path: Path) -> BundleFile:
    path = tmp_path / "written" / "a.fp16doctor"
    path.parent.mkdir()
    path.write_bytes(b"bundle")
    return BundleFile(path.name, str(path), sha256_of(path), 6)


def test_nothing_was_kept_or_it_is_in_neither_place(tmp_path: Path, named: BundleFile) -> None:
    assert find_bundle(None, tmp_path / "d.json") is None
    Path(named.path).unlink()
    assert find_bundle(named, tmp_path / "d.json") is None
    Path(named.path).mkdir()
    assert find_bundle(named, tmp_path / "d.json") is None


def test_beside_the_diagnosis_comes_first(tmp_path: Path, named: BundleFile) -> None:
    assert find_bundle(named, tmp_path / "d.json") == Path(named.path)
    (tmp_path / named.name).write_bytes(b"bundle")
    assert find_bundle(named, tmp_path / "d.json") == tmp_path / named.name


def test_another_file_beside_does_not_hide_the_one_meant(tmp_path: Path, named: BundleFile) -> None:
    (tmp_path / named.name).write_bytes(b"BUNDLE")
    assert find_bundle(named, tmp_path / "d.json") == Path(named.path)
    Path(named.path).write_bytes(b"bundle, longer")
    with pytest.raises(BundleError, match=r"is not the bundle .* 6 bytes.*\[other-bundle\]"):
        find_bundle(named, tmp_path / "d.json")


@pytest.mark.parametrize("name", ["../outside/a", "/etc/passwd", "..", "", "a/../../outside/a"])
def test_no_name_leads_out_of_the_diagnosis_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a").write_bytes(b"secret")
    (tmp_path / "inside").mkdir()
    secret = BundleFile(name, "", sha256_of(tmp_path / "outside" / "a"), 6)
    assert find_bundle(secret, tmp_path / "inside" / "d.json") is None
