"""Which elements of the inputs an output element is made of, and where an element came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from replaying import tapes
from torch import Tensor

from fp16doctor.replay.calls import outputs_of
from fp16doctor.replay.feeds import Element, Region, aligned, operands
from fp16doctor.replay.lineage import Lineage, place_in
from fp16doctor.schema.tape import OpCall, TensorRef, refs_in

ALL = slice(None)


def last_call(function: Callable[[], Any]) -> OpCall:
    (tape,) = tapes(function)
    return tape.ops[-1]


def regions(function: Callable[[], Any], element: Element) -> list[Region | None]:
    call = last_call(function)
    return [o.region for o in operands(call, outputs_of(call)[0], element)]


A, B, C = torch.randn(2, 3, 4), torch.randn(3, 1), torch.randn(2, 4, 5)


@pytest.mark.parametrize(
    ("function", "element", "expected"),
    [
        (lambda: A + B, (1, 2, 3), [(1, 2, 3), (2, 0)]),
        (lambda: A * 2.0, (1, 0, 3), [(1, 0, 3)]),
        (lambda: torch.bmm(A, C), (1, 2, 4), [(1, 2, ALL), (1, ALL, 4)]),
        (lambda: torch.mm(A[0], C[0]), (2, 4), [(2, ALL), (ALL, 4)]),
        (
            lambda: torch.addmm(B, A[0], C[0]),
            (2, 4),
            [(2, 0), (2, ALL), (ALL, 4)],
        ),
        (lambda: torch.softmax(A, 1), (1, 2, 3), [(1, ALL, 3)]),
        (lambda: A.cumsum(-1), (1, 2, 3), [(1, 2, ALL)]),
        (lambda: A.sum(), (), [(ALL, ALL, ALL)]),
        (lambda: A.sum(1), (1, 3), [(1, ALL, 3)]),
        (lambda: A.sum(1, keepdim=True), (1, 0, 3), [(1, ALL, 3)]),
        (lambda: A.mean((0, -1)), (2,), [(ALL, 2, ALL)]),
        (lambda: A.norm(dim=2), (1, 2), [(1, 2, ALL)]),
        (lambda: A.std(), (), [(ALL, ALL, ALL)]),
        (lambda: A.repeat(2, 1, 1), (3, 2, 1), [None]),
    ],
)
def test_regions(
    function: Callable[[], Tensor], element: Element, expected: list[Region | None]
) -> None:
    assert regions(function, element) == expected


@pytest.mark.parametrize("value", ["add", "bmm", "sum", "softmax"])
def test_region_holds_all_that_the_element_depends_on(value: str) -> None:
    """Nothing outside the region moves the element."""
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "add": lambda x: x + B,
        "bmm": lambda x: torch.bmm(x, C),
        "sum": lambda x: x.sum(1),
        "softmax": lambda x: torch.softmax(x, 1),
    }
    function, element = functions[value], (1, 2) if value == "sum" else (1, 2, 3)
    (region, *_) = regions(lambda: function(A), element)
    assert region is not None
    other = torch.full_like(A, 5.0)
    other[region] = A[region]
    assert function(other)[element] == pytest.approx(float(function(A)[element]))


def test_items_of_lists_belong_together() -> None:
    xs, ys = [torch.ones(2), torch.ones(3)], [torch.ones(2), torch.ones(3)]
    call = last_call(lambda: torch._foreach_add(xs, ys))
    second = refs_in(call.outputs)[1]
    found = operands(call, second, (1,))
    assert [o.ref for o in found] == [call.args[0][1], call.args[1][1]]
    assert [o.element for o in found] == [(1,), (1,)]


def test_roles_are_positions_and_names() -> None:
    call = last_call(lambda: torch.add(A, B))
    roles = [o.role for o in operands(call, outputs_of(call)[0], (0, 0, 0))]
    assert roles == ["input[0]", "input[1]"]


@pytest.mark.parametrize(
    ("shape", "element", "out", "expected"),
    [
        ((3, 4), (1, 2), (3, 4), (1, 2)),
        ((4,), (1, 2), (3, 4), (2,)),
        ((), (1, 2), (3, 4), ()),
        ((1, 4), (1, 2), (3, 4), (0, 2)),
        ((5, 4), (1, 2), (3, 4), None),
        ((3, 4), (), (), None),
        ((), (), (), ()),
    ],
)
def test_broadcast_element(
    shape: Element, element: Element, out: Element, expected: Element | None
) -> None:
    assert aligned(shape, element, out) == expected


# -- back to the op that made it -----------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.t(),
        lambda x: x[1:, ::2],
        lambda x: x.unsqueeze(0),
        lambda x: x.view(2, 6),
        lambda x: x[2],
        lambda x: x.expand(2, 3, 4),
        lambda x: x[:, :1],
    ],
)
def test_every_element_of_a_view_is_found_in_its_base(view: Callable[[Tensor], Tensor]) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    seen = view(base)
    ref, output = _ref(seen), _ref(base)
    for place in torch.cartesian_prod(*[torch.arange(n) for n in seen.shape]).reshape(
        -1, seen.dim()
    ):
        where = tuple(int(i) for i in place)
        found = place_in(ref, where, output)
        assert found is not None
        assert base[found] == seen[where]


def test_element_outside_of_an_output_is_not_found() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    assert place_in(_ref(base), (0, 3), _ref(base[1:])) is None
    assert place_in(_ref(base), (2, 1), _ref(base[:, ::2])) is None


def test_element_of_another_format_is_not_found() -> None:
    base = torch.arange(4.0)
    assert place_in(_ref(base.view(torch.int32)), (1,), _ref(base)) is None


def _ref(tensor: Tensor) -> TensorRef:
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    return TensorRef(1, 0, dtype, shape, stride, tensor.storage_offset(), "cpu")


def test_producer_of_a_view_is_the_op_that_wrote_it_last() -> None:
    def run() -> Any:
        x = torch.ones(4) * 2
        x[1:].mul_(3)
        return x.view(2, 2) + 1

    (tape,) = tapes(run)
    call = tape.ops[-1]
    lineage = Lineage(tape, call, call.outputs)
    node = lineage.producer(call.index, call.args[0])
    assert node is not None
    assert tape.ops[node.index].op == "aten.mul_.Tensor"
    assert set(lineage.wanted) >= {call.index, node.index}


def test_leaves_have_no_producer() -> None:
    call = last_call(lambda: A + B)
    (tape,) = tapes(lambda: A + B)
    assert Lineage(tape, tape.ops[-1], tape.ops[-1].outputs).producer(0, call.args[0]) is None
