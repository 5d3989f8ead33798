"""The script's own line with a guard, and lines that leave a doubt."""

from __future__ import annotations

import ast

import pytest

from fp16doctor.prescribe.guarded_line import (
    operands_on,
    with_added,
    with_bounds,
    with_finite_mask,
)


@pytest.mark.parametrize(
    ("line", "op", "guarded"),
    [
        ("a = torch.log(at[event])", "log", "a = torch.log(at[event].clamp(min=1e-12))"),
        ("a = (p * q).log().sum()", "log", "a = (p * q).clamp(min=1e-12).log().sum()"),
        ("a = torch.log(p * q)", "log", "a = torch.log((p * q).clamp(min=1e-12))"),
        ("h -= p * torch.log2(-p)", "log2", "h -= p * torch.log2((-p).clamp(min=1e-12))"),
        ("m = s / keep.sum(1)", "div", "m = s / keep.sum(1).clamp(min=1e-12)"),
        ("return (a / (b + c)).mean()", "div", "return (a / (b + c).clamp(min=1e-12)).mean()"),
        ("m = torch.div(s, n)", "div", "m = torch.div(s, n.clamp(min=1e-12))"),
        ("m = s.div(n) / 2", "div", "m = s.div(n.clamp(min=1e-12)) / 2"),
        (
            "x = a / m + b / (n - m)",
            "div",
            "x = a / m.clamp(min=1e-12) + b / (n - m).clamp(min=1e-12)",
        ),
        ("w = 1 / d", "reciprocal", "w = 1 / d.clamp(min=1e-12)"),
        ("for x in ü / d:", "div", "for x in ü / d.clamp(min=1e-12):"),
    ],
)
def test_a_lower_bound(line: str, op: str, guarded: str) -> None:
    found = with_bounds(line, op, "1e-12")
    assert found is not None
    assert found == guarded


@pytest.mark.parametrize(
    ("line", "op", "guarded"),
    [
        ("d = x.sqrt()", "sqrt", "d = (x + 1e-12).sqrt()"),
        ("d = torch.sqrt(x)", "sqrt", "d = torch.sqrt(x + 1e-12)"),
        ("d = (a - b).pow(2).sum(-1).sqrt()", "sqrt",
         "d = ((a - b).pow(2).sum(-1) + 1e-12).sqrt()"),
        ("d = (a * a + b * b).sqrt()", "sqrt", "d = (a * a + b * b + 1e-12).sqrt()"),
        ("d = torch.rsqrt(v if t else w)", "rsqrt", "d = torch.rsqrt((v if t else w) + 1e-12)"),
        ("d = (a + b) ** 0.5", "pow", "d = (a + b + 1e-12) ** 0.5"),
        ("d = x ** 0.5", "pow", "d = (x + 1e-12) ** 0.5"),
    ],
)  # fmt: skip
def test_a_constant_under_the_root(line: str, op: str, guarded: str) -> None:
    found = with_added(line, op, "1e-12")
    assert found is not None
    assert found == guarded
    ast.parse(found)


def test_both_bounds() -> None:
    found = with_bounds("t = torch.acos(c)", "acos", "-1 + 1e-6", "1 - 1e-6")
    assert found == "t = torch.acos(c.clamp(-1 + 1e-6, 1 - 1e-6))"


@pytest.mark.parametrize(
    ("line", "op"),
    [
        ("a = torch.log(1 - torch.log(q))", "log"),  # one within the other
        ("a = math.log(p)", "log"),  # no op
        ("a = b / 2", "div"),
        ("p.log_()", "log"),  # in place
        ("f = lambda p: p.log()", "log"),  # runs elsewhere
        ("a = torch.log(", "log"),  # only a part of a statement
        ("a = torch.log(*given)", "log"),
        ("s /= n", "div"),
        ("a = entropy(p)", "log"),
    ],
)
def test_a_line_that_leaves_a_doubt(line: str, op: str) -> None:
    assert operands_on(line, op) == ()
    assert with_bounds(line, op, "1") is None
    assert with_added(line, op, "1") is None


@pytest.mark.parametrize("inf", ['float("-inf")', "-torch.inf", "-float('inf')", "-math.inf"])
def test_a_mask_with_a_finite_value(inf: str) -> None:
    found = with_finite_mask(f"w = s.masked_fill(~m, {inf}).softmax(-1)")
    assert found is not None
    assert found == "w = s.masked_fill(~m, torch.finfo(s.dtype).min).softmax(-1)"
    assert with_finite_mask(f"w = torch.masked_fill(s, ~m, {inf})") is not None


@pytest.mark.parametrize(
    "line",
    ["w = s.masked_fill(~m, -1e4)", "w = (q @ k).masked_fill(~m, -torch.inf)", "w = s + mask"],
)
def test_no_mask_to_change(line: str) -> None:
    assert with_finite_mask(line) is None
