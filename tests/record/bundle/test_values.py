"""Every argument of an ATen call comes back as it was, through JSON text."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fp16doctor.record.bundle.malformed import MalformedError
from fp16doctor.record.bundle.values import MOST_NESTED, spell, unspell
from fp16doctor.record.roll import Held
from fp16doctor.schema.tape import TensorRef

DTYPES = [d for d in vars(torch).values() if isinstance(d, torch.dtype)]
sizes = st.lists(st.integers(0, 2**40), max_size=4).map(tuple)
references = st.builds(
    TensorRef,
    storage=st.integers(0, 2**40),
    version=st.integers(0, 100),
    dtype=st.sampled_from(["float16", "bfloat16", "int64", "bool", "complex64"]),
    shape=sizes,
    stride=sizes,
    offset=st.integers(0, 2**40),
    device=st.sampled_from(["cpu", "cuda:0", ""]),
)
floats = st.floats(allow_nan=True, allow_infinity=True)
integers = st.none() | st.integers(-(2**62), 2**62)
singles = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63),
    floats,
    st.text(),
    st.builds(complex, floats, floats),
    st.builds(slice, integers, integers, integers),
    st.sampled_from(DTYPES),
    st.sampled_from([torch.strided, torch.sparse_coo]),
    st.sampled_from([torch.preserve_format, torch.contiguous_format, torch.channels_last]),
    st.sampled_from([torch.device("cpu"), torch.device("cuda:1"), torch.device("meta")]),
    st.sampled_from([torch.per_tensor_affine]),
    st.builds(Held, st.text()),
    references,
)
arguments = st.recursive(
    singles,
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a, math.copysign(1, a)) == (
            b,
            math.copysign(1, b),
        )
    return bool(a == b)


def depth(value: Any) -> int:
    return 1 + max(map(depth, value), default=0) if isinstance(value, (list, tuple)) else 0


@settings(max_examples=300, deadline=None)
@given(arguments.filter(lambda v: depth(v) < MOST_NESTED))
def test_an_argument_comes_back_as_it_was(value: Any) -> None:
    text = json.dumps(spell(value), allow_nan=False)
    assert same(unspell(json.loads(text)), value)


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | floats | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
        max_leaves=8,
    )
)
def test_any_json_is_an_argument_or_refused(data: Any) -> None:
    try:
        value = unspell(data)
    except MalformedError:
        return
    assert same(unspell(spell(value)), value)


def test_a_generator_keeps_its_device() -> None:
    again = unspell(spell(torch.Generator()))
    assert isinstance(again, torch.Generator)
    assert again.device.type == "cpu"


def test_a_string_is_never_taken_for_something_else() -> None:
    for word in ("inf", "nan", "float16", "cpu", "torch.float16"):
        assert spell(word) == word == unspell(word)


@pytest.mark.parametrize("value", [object(), {1: 2}, torch.ones(1), len])
def test_what_has_no_spelling(value: Any) -> None:
    with pytest.raises(TypeError):
        spell(value)
