"""Cutting: whatever the question, what is left still answers it, and is no larger."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fp16doctor.replay.excerpt.build import view_between
from fp16doctor.replay.excerpt.shrink import Given, shrink
from fp16doctor.schema.tape import TensorRef


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_one_bad_element_of_two_broadcast_tensors(
    rows: int, columns: int, data: st.DataObject
) -> None:
    a, b = torch.zeros(rows, columns), torch.zeros(columns)
    i, j = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    a[i, j], b[j] = 1.0, 1.0

    def still(kept: Given) -> bool:
        if kept["a"].shape[1] != kept["b"].shape[0]:
            return False
        return bool((kept["a"] + kept["b"] == 2).any())

    found = shrink({"a": a, "b": b}, still)
    assert {name: tuple(t.shape) for name, t in found.items()} == {"a": (1, 1), "b": (1,)}
    assert still(found)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 40))
def test_a_sum_keeps_what_it_needs(size: int) -> None:
    def still(kept: Given) -> bool:
        return float(kept["a"].sum()) >= 4.0

    if size < 4:
        return
    found = shrink({"a": torch.ones(size)}, still)
    assert still(found)
    assert found["a"].numel() <= 6


def test_dimensions_that_belong_together_are_cut_together() -> None:
    a, b = torch.ones(5, 7), torch.ones(7, 3)

    def still(kept: Given) -> bool:
        if kept["a"].shape[1] != kept["b"].shape[0]:
            return False
        return bool((kept["a"] @ kept["b"] >= 1).any())

    found = shrink({"a": a, "b": b}, still)
    assert [tuple(t.shape) for t in found.values()] == [(1, 1), (1, 1)]


def ref(t: torch.Tensor) -> TensorRef:
    return TensorRef(1, 0, "float32", tuple(t.shape), t.stride(), int(t.storage_offset()), "cpu")


def test_views_are_told_as_methods() -> None:
    base = torch.arange(24.0).reshape(2, 3, 4)
    views = {
        None: base,
        "permute": base.permute(2, 0, 1),
        "reshape": base.view(6, 4),
        "as_strided": base[:, 1],
    }
    for method, view in views.items():
        found, parameters = view_between(ref(base), ref(view))
        assert found == method
        again = base if found is None else getattr(base, found)(*parameters)
        assert torch.equal(again, view)
    column = torch.arange(3.0).reshape(3, 1)
    assert view_between(ref(column), ref(column.expand(-1, 5))) == ("expand", (-1, 5))
