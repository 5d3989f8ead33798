"""The lists are those of the installed torch, whose header spells them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from fp16doctor.simulate import cuda_lists

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"


def spelled(macro: str) -> set[str]:
    """Return the ops of one list: ``_(pow, Scalar)`` is pow.Scalar."""
    text = HEADER.read_text(encoding="utf-8")
    start = text.index(f"#define {macro}(_)")
    body = text[start : text.index("\n\n", start)]
    entries = re.findall(r"_\((\w+)(?:, (\w+))?\)", body[len(f"#define {macro}(_)") :])
    return {".".join(filter(None, entry)) for entry in entries}


@pytest.mark.skipif(not HEADER.exists(), reason="this torch comes without its headers")
@pytest.mark.parametrize(
    ("macro", "names"),
    [
        ("AT_FORALL_LOWER_PRECISION_FP", cuda_lists.LOWER_PRECISION),
        ("AT_FORALL_FP32", cuda_lists.FP32),
        ("AT_FORALL_FP32_SET_OPT_DTYPE", cuda_lists.FP32_RESULT),
        ("AT_FORALL_PROMOTE", cuda_lists.PROMOTE),
    ],
)
def test_a_list_is_the_one_of_torch(macro: str, names: tuple[str, ...]) -> None:
    assert set(names) == spelled(macro)
    assert len(names) == len(set(names))


def test_no_op_is_in_two_lists() -> None:
    lists = (
        *(cuda_lists.LOWER_PRECISION, cuda_lists.FP32, cuda_lists.FP32_RESULT),
        *(tuple(cuda_lists.FP32_OVERLOAD), cuda_lists.PROMOTE, cuda_lists.REFUSED),
    )
    names = [name for names in lists for name in names]
    assert len(names) == len(set(names))
