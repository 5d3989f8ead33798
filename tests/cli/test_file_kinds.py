"""A file that a command does not take is named for what it is, with the command that takes it."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from fp16doctor.cli.file_kinds import Kind, kind_of, remedy_for
from fp16doctor.cli.main import fp16doctor
from fp16doctor.errors import UsageError

SAMPLE = Path(__file__).parents[1] / "samples" / "v1-overflow.json"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("{}\n")
    (tmp_path / "plain").write_text("print(1)\n")
    (tmp_path / "dict").write_text("{1: 2}\n")
    notebook = {"cells": [], "metadata": {}, "nbformat": 4}
    (tmp_path / "n.ipynb").write_text(json.dumps(notebook))
    (tmp_path / "cut.ipynb").write_text("")
    (tmp_path / "page.html").write_text("\n<!DOCTYPE html><html></html>")
    (tmp_path / "run.json").write_bytes(SAMPLE.read_bytes())
    (tmp_path / "m.index.json").write_text('{"weight_map": {}}')
    (tmp_path / "config.json").write_text('{"lr": 1e-3}')
    torch.save({"a": torch.ones(2)}, tmp_path / "c.pt")
    torch.save({"a": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    save_file({"a": torch.ones(2)}, tmp_path / "c.safetensors")
    save_file({"a": torch.ones(2)}, tmp_path / "b.x", metadata={"format": "fp16doctor-bundle"})
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", "print(1)")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("train.py", Kind.SCRIPT),
        ("plain", Kind.OTHER),
        ("dict", Kind.OTHER),
        ("n.ipynb", Kind.NOTEBOOK),
        ("cut.ipynb", Kind.NOTEBOOK),
        ("page.html", Kind.PAGE),
        ("run.json", Kind.DIAGNOSIS),
        ("m.index.json", Kind.INDEX),
        ("config.json", Kind.JSON),
        ("c.pt", Kind.CHECKPOINT),
        ("old.pt", Kind.CHECKPOINT),
        ("c.safetensors", Kind.CHECKPOINT),
        ("b.x", Kind.BUNDLE),
        ("app.pyz", Kind.OTHER),
        (".", Kind.OTHER),
        ("nowhere", Kind.OTHER),
    ],
)
def test_a_file_is_known_by_its_content(folder: Path, name: str, kind: Kind) -> None:
    assert kind_of(name) is kind


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_what_can_be_read_only_once_is_left_alone(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert kind_of("pipe") is Kind.OTHER


@pytest.mark.parametrize(
    ("command", "met", "do"),
    [
        ("scan n.ipynb", "is a notebook", "fp16doctor.profile(model, optimizer)"),
        ("scan n.ipynb", "is a notebook", "jupyter nbconvert --to script n.ipynb"),
        ("scan c.pt", "is a checkpoint", "fp16doctor weights c.pt"),
        ("scan run.json", "is a diagnosis", "fp16doctor report run.json"),
        ("scan config.json", "is JSON", "name a Python script"),
        ("scan page.html", "is an HTML page", "in a browser"),
        ("scan b.x", "is a step", "fp16doctor replay b.x"),
        ("weights train.py", "is a Python script", "fp16doctor scan train.py"),
        ("weights run.json", "is a diagnosis", "fp16doctor report run.json"),
        ("report train.py", "is a Python script", "fp16doctor scan train.py"),
        ("report c.safetensors", "is a checkpoint", "fp16doctor weights c.safetensors"),
        ("compare run.json page.html", "is an HTML page", "the JSON beside it"),
        ("replay run.json", "is a diagnosis", "fp16doctor report run.json"),
        ("repro c.pt", "is a checkpoint", "fp16doctor weights c.pt"),
        ("lint n.ipynb", "is a notebook", "nbconvert"),
    ],
)
def test_another_kind_of_file_is_refused_in_one_line(
    folder: Path, command: str, met: str, do: str
) -> None:
    result = CliRunner().invoke(fp16doctor, command.split(), standalone_mode=False)
    assert isinstance(result.exception, UsageError)
    message = str(result.exception)
    assert met in message
    assert do in message
    assert message.endswith("[other-file]")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("train.py", "--lr", "1"), "Did you mean: fp16doctor scan train.py --lr 1"),
        (("nowhere.py",), "Did you mean: fp16doctor scan nowhere.py"),
        (("scna", "train.py"), "Did you mean: fp16doctor scan train.py"),
        (("run.json",), "fp16doctor report run.json"),
        (("doctor",), "The commands are: scan, report, "),
    ],
)
def test_what_is_no_command_is_answered_with_one(
    folder: Path, words: tuple[str, ...], meant: str
) -> None:
    result = CliRunner().invoke(fp16doctor, list(words), standalone_mode=False)
    assert isinstance(result.exception, click.UsageError)
    assert meant in str(result.exception)


def test_every_command_that_a_remedy_names_is_there() -> None:
    context = click.Context(fp16doctor)
    for kind in Kind:
        for piece in remedy_for(kind, "X").split("`fp16doctor ")[1:]:
            assert fp16doctor.get_command(context, piece.split()[0].rstrip("`")) is not None
