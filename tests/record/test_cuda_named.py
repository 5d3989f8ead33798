"""Whether a script's files spell out a CUDA device."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp16doctor.record.cuda_named import MOST_FILES, cuda_named


@pytest.mark.parametrize(
    ("source", "argv", "named"),
    [
        ("model.cuda()", (), True),
        (b"device = 'cuda:0'", (), True),
        ("model.to(args.device)", ("--device=cuda",), True),
        ("model.to(args.device)", ("--device", "cpu"), False),
        (None, (), False),
    ],
)
def test_the_script_and_its_arguments(
    source: str | bytes | None, argv: tuple[str, ...], named: bool, tmp_path: Path
) -> None:
    assert cuda_named(source, argv, str(tmp_path)) is named


@pytest.mark.parametrize(
    ("file", "named"),
    [("net.py", True), ("parts/net.py", True), ("notes.txt", False), (".venv/net.py", False)],
)
def test_files_beside_it(file: str, named: bool, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("def place(model): return model.cuda()\n")
    assert cuda_named("import net", (), str(tmp_path)) is named


def test_what_cannot_be_read_names_nothing(tmp_path: Path) -> None:
    assert not cuda_named("", (), str(tmp_path / "nowhere"))
    (tmp_path / "folder.py").mkdir()
    assert not cuda_named("", (), str(tmp_path))


def test_many_files_are_not_read(tmp_path: Path) -> None:
    for number in range(MOST_FILES):
        (tmp_path / f"a{number:03}.py").touch()
    (tmp_path / "z.py").write_text("x.cuda()")
    assert not cuda_named("", (), str(tmp_path))
