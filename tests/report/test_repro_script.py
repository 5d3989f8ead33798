"""The script of an excerpt: it runs with torch alone, and nothing of a recording runs in it."""

from __future__ import annotations

import ast
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fp16doctor.replay.excerpt.build import Draft
from fp16doctor.replay.excerpt.run import HALF, bad_elements, looks
from fp16doctor.report.repro_script import INLINE, fits_inline, render_repro
from fp16doctor.schema.bundle import Origin
from fp16doctor.schema.excerpt import Excerpt, Line, Sample, Shows, Value
from fp16doctor.schema.location import OpSite, Phase, SourceLine

ORIGIN = Origin("train.py", 0, "cpu", "0.1.0", "2.13.0")
SITE = OpSite(3, Phase.FORWARD, "aten.exp.default", 7, "head", "Head",
              source=SourceLine("train.py", 40, "f", "y = x.exp()"))  # fmt: skip


def excerpt(given: dict[str, Tensor], *lines: Line, **changes: Any) -> Excerpt:
    shows = changes.pop("shows", Shows.NONFINITE)
    answer = changes.pop("answer", Value(lines[-1].result))
    draft = Draft(list(lines), given, [answer], {answer: changes["before"]} if changes else {})
    sample = looks(draft, given, answer, HALF, shows) or Sample(0, 0, (), 0.0, 0.0)
    return Excerpt(lines, given, answer, shows, HALF, sample, **changes)


def line(op: str, *args: Any, result: str = "y0", **kwargs: Any) -> Line:
    return Line(result, op, args, kwargs, SITE)


def play(text: str, path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    path.write_text(text)
    exec(compile(text, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})
    return capsys.readouterr().out


A = Value("a")


def test_it_says_where_what_and_how_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = excerpt(
        {"a": torch.tensor([1.0, 12.0], dtype=torch.float16)}, line("aten.exp.default", A)
    )
    text = render_repro(made, ORIGIN, None)
    assert text.splitlines()[:3] == [
        "# aten.exp: inf or NaN in float16, finite in float32.",
        "# head (Head) · forward · step 3 · train.py:40: y = x.exp()",
        "# Recorded by fp16doctor 0.1.0 with torch 2.13.0 on cpu, cut from 0 elements to 2.",
    ]
    assert play(text, tmp_path / "r.py", capsys) == (
        "1 of 2 elements: inf or NaN in float16, finite in float32\n"
        "first: inf | in float32: 162754.796875\n"
    )
    assert len(text.splitlines()) <= 30
    assert max(map(len, text.splitlines())) <= 100


def test_a_script_that_shows_nothing_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = excerpt({"a": torch.tensor([1.0], dtype=torch.float16)}, line("aten.exp.default", A))
    with pytest.raises(AssertionError, match="does not show"):
        play(render_repro(made, ORIGIN, None), tmp_path / "r.py", capsys)


def test_many_elements_lie_in_a_file_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fp16doctor.record.bundle.given import write_given

    given = {"a": torch.full((INLINE, 2), 12.0, dtype=torch.float16), "b": torch.tensor([[True]])}
    made = excerpt(given, line("aten.exp.default", A))
    assert not fits_inline(made)
    write_given(tmp_path / "r.safetensors", given)
    raw = (tmp_path / "r.safetensors").read_bytes()
    assert json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])["a"]["dtype"] == "F16"
    clamped = excerpt(given, line("aten.clamp.default", A, float("-inf"), 13.0),
                      line("aten.exp.default", Value("y0"), result="y1"))  # fmt: skip
    path = tmp_path / "r.py"
    assert "elements" in play(render_repro(clamped, ORIGIN, "r.safetensors"), path, capsys)
    text = render_repro(made, ORIGIN, "r.safetensors")
    assert "safetensors.torch" not in text
    assert f"{2 * INLINE} of {2 * INLINE} elements" in play(text, tmp_path / "r.py", capsys)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            excerpt({"a": torch.tensor([257])},
                    line("aten._to_copy.default", A, dtype=torch.bfloat16), shows=Shows.INTEGER),
            "first: 256.0 | in float32: 257.0",
        ),
        (
            excerpt({"a": torch.tensor([1e-4], dtype=torch.float16)},
                    line("aten.pow.Tensor_Scalar", A, 2), shows=Shows.ZERO),
            "first: 0.0 | in float32: 1.00",
        ),
        (
            excerpt({"a": torch.tensor([100.0], dtype=torch.float16),
                     "b": torch.tensor([1e-3], dtype=torch.float16)},
                    line("aten.add_.Tensor", A, Value("b"), alpha=-1.0),
                    shows=Shows.UNCHANGED, answer=A, before="a"),
            "first: 100.0 | in float32: 99.99",
        ),
        (
            excerpt({"a": torch.tensor([float("nan"), float("-inf")], dtype=torch.float16)},
                    line("aten.exp.default", A), shows=Shows.NONFINITE_IN_BOTH),
            "1 of 2 elements: inf or NaN, in float32 as well as in float16",
        ),
        (
            excerpt({"a": torch.ones(2, 3, dtype=torch.float16)},
                    line("aten.mul.Tensor", A, 300.0),
                    line("aten.split.Tensor", Value("y0", None, "permute", (1, 0)), 2, result="y1"),
                    line("aten.mul.Tensor", Value("y1", 0), 300.0, result="y2")),
            "4 of 4 elements",
        ),
    ],
)  # fmt: skip
def test_every_kind_of_fault_shows(
    made: Excerpt, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in play(render_repro(made, ORIGIN, None), tmp_path / "r.py", capsys)


def test_further_off_than_one_rounding() -> None:
    low, high = torch.tensor([1.0, 1.0], dtype=torch.float16), torch.tensor([1.0001, 1.02])
    assert bad_elements(Shows.OFF, low, high, None).tolist() == [False, True]


@pytest.mark.parametrize(
    "word", ["x\nimport os", "x\r\nimport os", "x\u2028import os", '"""', "\x1b["]
)
def test_nothing_of_a_recording_becomes_code(word: str) -> None:
    hostile = OpSite(0, Phase.LOSS, "aten.exp.default", 0, word, word,
                     source=SourceLine(word, 1, word, word))  # fmt: skip
    made = excerpt({"a": torch.tensor([12.0], dtype=torch.float16)},
                   Line("y0", "aten.exp.default", (A,), {}, hostile))  # fmt: skip
    text = render_repro(made, Origin(word, 0, word, word, word), None)
    clean = render_repro(
        excerpt({"a": torch.tensor([12.0], dtype=torch.float16)}, line("aten.exp.default", A)),
        ORIGIN, None,
    )  # fmt: skip
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(clean))


def test_strings_are_literals() -> None:
    made = excerpt({"a": torch.tensor([12.0], dtype=torch.float16)},
                   line("aten.gelu.default", A, approximate="none')\nimport os\n('"))  # fmt: skip
    tree = ast.parse(render_repro(made, ORIGIN, None))
    names = [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    assert names == ["torch"]
