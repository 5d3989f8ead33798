"""Runs small training scripts, as they are or under a patch, and returns what came of them."""

from __future__ import annotations

import textwrap
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from fp16doctor.schema.location import SourceLine

MODEL = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(6, 8)
        self.mid = nn.Linear(8, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.mid(torch.tanh(self.inp(x)))))

torch.manual_seed(0)
"""
LOOP = """
losses = []
for step in range(4):
    x, y = torch.randn(5, 6), torch.randint(0, 3, (5,))
    loss = step_loss(net, x, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
weights = [p.detach().clone() for p in net.parameters()]
"""


class FileLines:
    """Names the innermost frame that was compiled from ``name``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def key(self, frame: FrameType | None) -> tuple[tuple[CodeType, int] | None, None]:
        while frame is not None:
            if frame.f_code.co_filename == self._name:
                return (frame.f_code, frame.f_lineno), None
            frame = frame.f_back
        return None, None

    def line(self, key: tuple[CodeType, int] | None) -> SourceLine | None:
        if key is None:
            return None
        code, number = key
        return SourceLine(self._name, number, getattr(code, "co_qualname", code.co_name))


def ran(text: str, *patches: AbstractContextManager[Any], name: str = "train.py") -> dict[str, Any]:
    """Run a script's text inside patches; its globals."""
    space: dict[str, Any] = {"__name__": "__main__"}
    code = compile(textwrap.dedent(text), name, "exec")
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        exec(code, space)
    return space


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """The losses and the weights of two runs are equal, bit by bit."""
    pairs = zip(one["weights"], other["weights"], strict=True)
    return one["losses"] == other["losses"] and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs
    )


def line_of(text: str, part: str) -> int:
    """The number of the first line that holds ``part``."""
    lines = textwrap.dedent(text).splitlines()
    return next(i for i, line in enumerate(lines, 1) if part in line)


def write(folder: Path, text: str) -> Path:
    """Write a script."""
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return path
