"""What a file is that a command was given, and the command that takes such a file.

By its first bytes, so that nothing of it is run or unpickled. Must not know the commands.
"""

from __future__ import annotations

import json
import os
import stat
from enum import Enum
from pathlib import Path

from fp16doctor.errors import UsageError

_MOST_JSON = 64 << 20  # bytes of a JSON that are read to tell what it is
_IN_CELL = "`with fp16doctor.profile(model, optimizer) as prof:`"


class Kind(Enum):
    """What lies in a file; the value is how a message calls it."""

    SCRIPT = "a Python script"
    NOTEBOOK = "a notebook"
    PAGE = "an HTML page"
    DIAGNOSIS = "a diagnosis of fp16doctor"
    INDEX = "the index of a checkpoint"
    JSON = "JSON"
    CHECKPOINT = "a checkpoint"
    BUNDLE = "a step that scan --save-bundle kept"
    OTHER = "something else"


def kind_of(path: str | os.PathLike[str]) -> Kind:
    """Return what a file is; OTHER where that is not certain, or where it can be read only once."""
    name = os.fspath(path)
    try:
        if not stat.S_ISREG(os.stat(name).st_mode):
            return Kind.OTHER
        if name.endswith(".py"):
            return Kind.SCRIPT
        with open(name, "rb") as stream:
            return _by_content(stream.read(_MOST_JSON), name)
    except (OSError, ValueError):
        return Kind.OTHER


def _by_content(content: bytes, name: str) -> Kind:
    head = content[:512].lstrip()
    if content[8:9] == b"{" and content[6:8] == b"\0\0":  # the length of a header, then the header
        return Kind.BUNDLE if b'"fp16doctor' in content[:4096] else Kind.CHECKPOINT
    if content[:2] in (b"\x80\x02", b"\x80\x04") or (content[:2] == b"PK" and _holds_data(content)):
        return Kind.CHECKPOINT
    if head[:15].lower().startswith((b"<!doctype html", b"<html")):
        return Kind.PAGE
    if head[:1] == b"{":
        return _of_json(content)
    return Kind.NOTEBOOK if name.endswith(".ipynb") else Kind.OTHER


def _holds_data(content: bytes) -> bool:
    """Tell whether a zip archive is one of torch.save."""
    return b"data.pkl" in content[:4096]


def _of_json(content: bytes) -> Kind:
    try:
        keys = json.loads(content)
    except ValueError:
        return Kind.OTHER
    for key, kind in (
        ("nbformat", Kind.NOTEBOOK),
        ("findings", Kind.DIAGNOSIS),
        ("weight_map", Kind.INDEX),
    ):
        if key in keys:
            return kind
    return Kind.JSON


def remedy_for(kind: Kind, name: str) -> str:
    """Return what to do with such a file; "" where no command takes it."""
    return {
        Kind.SCRIPT: f"run it with `fp16doctor scan {name}`",
        Kind.NOTEBOOK: f"put the training loop into {_IN_CELL} in its cell, or write it as a script"
        f" first: `jupyter nbconvert --to script {name}`",
        Kind.PAGE: "open it in a browser; the JSON beside it is read by `fp16doctor report`",
        Kind.DIAGNOSIS: f"show it with `fp16doctor report {name}`",
        Kind.INDEX: f"look at its tensors with `fp16doctor weights {name}`",
        Kind.CHECKPOINT: f"look at its tensors with `fp16doctor weights {name}`",
        Kind.BUNDLE: f"replay it with `fp16doctor replay {name}`",
    }.get(kind, "")


def refuse_other(path: str | Path, what: str, *takes: Kind) -> None:
    """Refuse a file that is certainly of another kind than a command takes.

    Args:
        path: the file.
        what: what the command takes, for the reader.
        takes: its kinds; OTHER always passes.

    Raises:
        UsageError: other-file.
    """
    kind = kind_of(path)
    if kind is Kind.OTHER or kind in takes:
        return
    remedy = remedy_for(kind, str(path)) or f"name {what}"
    raise UsageError(f"'{path}' is {kind.value}, not {what}; {remedy}", "other-file")
