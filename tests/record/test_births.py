"""Suspected births: one where a non-finite value is made, none where it only spreads."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import trainings
from torch import Tensor, nn
from torch.nn import functional as F
from watched import Record, Watched, short

from fp16doctor.record import op_info
from fp16doctor.record.births import Birth, spoils
from fp16doctor.record.recorder import Recorder
from fp16doctor.record.roll import Roll
from fp16doctor.schema.location import Phase

HALF = torch.float16
LARGE = 60000.0


def names(seen: Watched) -> list[str]:
    """Ops of the births of all tapes; the tape must be kept whole for the indices to hold."""
    return [short(b.key[0]) for found in seen.births for b in found]  # type: ignore[index]


def births_of(record: Record, loss: Callable[[], Tensor | None]) -> list[str]:
    def run() -> None:
        w = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        extra = loss()
        total = (w * 2).sum()
        (total if extra is None else total + extra.float().sum()).backward()
        optimizer.step()

    return names(record(run))


def test_nothing_is_born_in_a_sound_step(record: Record) -> None:
    assert births_of(record, lambda: torch.ones(3)) == []


def test_an_overflow_is_one_birth(record: Record) -> None:
    def loss() -> Tensor:
        x = torch.full((4,), LARGE, dtype=HALF)
        return (x * x).relu().sum() * 2

    assert births_of(record, loss) == ["mul"]


def test_a_nan_made_of_an_inf_is_a_birth_of_its_own(record: Record) -> None:
    def loss() -> Tensor:
        y = torch.full((4,), LARGE, dtype=HALF) * 2
        return (y - y).sum()

    assert births_of(record, loss) == ["mul", "sub"]


def test_a_mask_given_from_outside_is_none(record: Record) -> None:
    mask = torch.tensor([0.0, -math.inf])
    weights = nn.Parameter(torch.ones(2))

    def loss() -> Tensor:
        scores = weights * 3 + mask
        return scores.softmax(-1)[0]

    assert births_of(record, loss) == []


def test_a_mask_made_of_a_constant_is_none(record: Record) -> None:
    def loss() -> Tensor:
        mask = torch.full((3, 3), -math.inf).triu(1)
        scores = torch.ones(3, 3).masked_fill(torch.eye(3).bool(), -math.inf)
        other = torch.zeros(3, 3).masked_fill_(torch.eye(3).bool(), float("-inf"))
        return (scores + mask).softmax(-1).nan_to_num().sum() + other.exp().sum()

    assert births_of(record, loss) == ["_softmax"]  # its last row is empty


def test_a_row_of_a_mask_that_is_empty(record: Record) -> None:
    mask = torch.full((2, 2), -math.inf)
    assert births_of(record, lambda: (torch.ones(2, 2) + mask).softmax(-1)) == ["_softmax"]


def test_a_parameter_that_is_bad_already(record: Record) -> None:
    weights = nn.Parameter(torch.tensor([math.nan, 1.0]))
    assert births_of(record, lambda: (weights * 2).sum()) == []


def test_a_mask_given_by_name(record: Record) -> None:
    """Keyword arguments are read too."""
    mask = torch.tensor([[0.0, -math.inf], [-math.inf, -math.inf]])
    q = torch.randn(1, 1, 2, 4)

    def loss() -> Tensor:
        out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        return torch.clamp(out, max=torch.tensor(math.inf))

    assert births_of(record, loss) == []


def test_division_by_zero_and_logarithm_of_a_negative(record: Record) -> None:
    x = nn.Parameter(torch.tensor([-1.0, 2.0]))
    assert births_of(record, lambda: torch.log(x).nan_to_num().sum()) == ["log"]
    found = births_of(record, lambda: (x / torch.zeros(2)).clamp(-1, 1).sum())
    assert found[0] == "div"


def test_what_was_healed_can_be_born_again(record: Record) -> None:
    def loss() -> Tensor:
        x = torch.full((4,), LARGE, dtype=HALF)
        x.mul_(2)
        x.fill_(1)
        x.mul_(1)
        x.mul_(1e5)
        return torch.zeros(1)

    assert births_of(record, loss) == ["mul_", "mul_"]


def test_a_part_that_is_overwritten_does_not_heal_the_rest(record: Record) -> None:
    def loss() -> Tensor:
        x = torch.full((4,), LARGE, dtype=HALF)
        x.mul_(2)
        x[:2].fill_(1)
        x.mul_(0.5)
        return torch.zeros(1)

    assert births_of(record, loss) == ["mul_"]


def test_foreach_results_are_told_apart(record: Record) -> None:
    """A list with one bad tensor does not make the others bad."""

    def loss() -> Tensor:
        good, bad = torch.ones(2, dtype=HALF), torch.full((2,), LARGE, dtype=HALF)
        torch._foreach_mul_([good, bad], 3.0)
        return good * LARGE

    assert births_of(record, loss) == ["_foreach_mul_", "mul"]


def test_gradients(record: Record) -> None:
    x = nn.Parameter(torch.zeros(2))

    def run() -> None:
        optimizer = torch.optim.SGD([x], lr=0.1)
        x.sqrt().sum().backward()
        optimizer.step()

    seen = record(run)
    (birth,) = seen.births[0]
    assert birth.phase is Phase.BACKWARD
    assert short(seen.tapes[0].ops[birth.index].op) == "div"
    assert seen.steps[0].n_nonfinite_ops == 2  # the gradient, the new weight


def test_values_of_sparse_gradients_are_looked_at(record: Record) -> None:
    def run() -> None:
        table = nn.Embedding(5, 2, sparse=True)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        (table(torch.tensor([1, 3])) * 1e30 * 1e30).sum().backward()
        optimizer.step()

    assert record(run).steps[0].n_nonfinite_ops >= 4


def test_the_key_is_the_same_in_every_step(record: Record) -> None:
    def run() -> None:
        model = nn.Linear(2, 2).half()
        with torch.no_grad():
            model.weight.fill_(LARGE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2, dtype=HALF)).sum().backward()
            optimizer.step()

    seen = record(run)
    keys = [{b.key for b in found} for found in seen.births]
    assert len(keys) == 3
    assert keys[0]
    assert keys[0] == keys[1] == keys[2]


def test_a_memory_that_was_never_written_is_not_looked_at(record: Record) -> None:
    def loss() -> Tensor:
        x = torch.empty(4)
        x.numpy()[:] = math.nan
        x.new_empty(3)
        torch.empty_like(x).zero_()
        return torch.zeros(1)

    assert births_of(record, loss) == []


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_births_outside_of_steps(value: float, record: Record) -> None:
    """A table that is bad before training starts is handed over with the first tape."""
    table = torch.tensor([1.0, 2.0])
    limit = torch.tensor(value)

    def run() -> None:
        ready = (table * 1e38 * 1e38) if math.isinf(limit) else (table - 5).log()
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(ready.nan_to_num(0, 0, 0)).sum().backward()
        optimizer.step()

    assert names(record(run))[:1] == ["mul" if math.isinf(value) else "log"]


@pytest.mark.parametrize("name", trainings.ALL)
def test_results_that_need_no_look_are_not_missed(name: str, record: Record) -> None:
    """With and without the short cut for ops that keep finite values finite."""

    def codes() -> list[list[tuple[str, bool, bool]]]:
        torch.manual_seed(1)
        seen = record(trainings.ALL[name])
        return [[(op.op, op.nonfinite, op.nan) for op in tape.ops] for tape in seen.tapes]

    short_cut = codes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op_info, "_KNOWN", {})
        patch.setattr(op_info, "_KEEPS_FINITE", frozenset())
        assert codes() == short_cut


def test_an_op_that_keeps_finite_values_is_looked_at_where_they_may_not_be(record: Record) -> None:
    def loss() -> Tensor:
        bad = torch.tensor([math.nan, 1.0])
        mixed = torch.stack([bad * 1, torch.ones(2)]).relu().tanh()
        part = torch.empty(4)
        part[:2] = 1.0
        part.numpy()[2:] = math.inf
        return (mixed.nan_to_num() + part.clone().clamp(0, 1).sum()).sum()

    def run() -> None:
        w = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        (loss() + w.sum()).backward()
        optimizer.step()

    flagged = [short(op.op) for op in record(run).ops if op.nonfinite]
    assert flagged == ["mul", "stack", "relu", "tanh", "clone"]


def test_what_a_step_is_given_is_known_where_the_step_takes_it_in(record: Record) -> None:
    def run() -> None:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(3):
            x = torch.ones(2, 3)
            if number == 1:
                x[0, 0] = math.nan
            model(x).sum().backward()
            optimizer.step()
            model.load_state_dict({"weight": torch.ones(1, 3), "bias": torch.ones(1)})

    assert [len(found) for found in record(run).given] == [0, 1, 0]


def test_a_mask_in_a_sound_step_is_not_given(record: Record) -> None:
    mask = torch.tensor([0.0, -math.inf])

    def run() -> None:
        w = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        (w * 3 + mask).softmax(-1)[0].backward()
        optimizer.step()

    assert record(run).given == [[]]


def test_what_puts_nan_into_a_parameter_is_known_in_its_step(record: Record) -> None:
    model = nn.Linear(2, 1)

    def run() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
            if step == 1:
                model.weight.data[0, 0] = math.nan

    found: list[list[Birth]] = []

    def started(recorder: Recorder) -> None:
        hand_over = recorder._on_tape

        def on_tape(recorder: Recorder, roll: Roll) -> None:
            found.append(spoils(roll))
            hand_over(recorder, roll)

        recorder._on_tape = on_tape

    record(run, started=started)
    assert [len(f) for f in found] == [0, 1, 0]
    assert short(found[1][0].key[1][0]) == "copy_"  # type: ignore[index]
