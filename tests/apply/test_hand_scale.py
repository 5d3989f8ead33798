"""A constant loss scale in a script's text: changed on both sides, and nowhere else."""

from __future__ import annotations

import ast

import pytest

from fp16doctor.apply.hand_scale import with_scale


def changed(text: str, old: float = 1024.0, new: float = 8.0) -> str | None:
    tree = with_scale(ast.parse(text), old, new)
    return None if tree is None else ast.unparse(tree)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(loss * 1024).backward()\ng.div_(1024.0)", "(loss * 8.0).backward()\ng.div_(8.0)"),
        ("S = 2.0 ** 10\ny = loss * S\ng /= S", "S = 8.0\ny = loss * S\ng /= S"),
        ("g = g * (1 / 1024)", "g = g * (1 / 8.0)"),
        ("self.scale = 1 << 10\ny = x / self.scale", "self.scale = 8.0\ny = x / self.scale"),
        ("def f(x, s=1024, *, t=3):\n    return x * s", None),
        ("f(scale=1024)\ny = scale * x", "f(scale=8.0)\ny = scale * x"),
    ],
)
def test_numbers_that_scale(text: str, expected: str | None) -> None:
    wanted = expected or "def f(x, s=8.0, *, t=3):\n    return x * s"
    assert changed(text) == wanted


@pytest.mark.parametrize(
    "text",
    ["net = Linear(1024, 3)", "width = 1024\nx = zeros(width)", "y = x * 512", "y = x + 1024"],
)
def test_other_numbers_stay(text: str) -> None:
    assert changed(text) is None
