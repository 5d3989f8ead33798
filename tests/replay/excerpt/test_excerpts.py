"""Excerpts of small faulty trainings: the op, its cause, as little given as shows the fault."""

from __future__ import annotations

from collections.abc import Callable

import torch
from curing import recorded
from torch import Tensor, nn

from fp16doctor.replay.examine import examine
from fp16doctor.replay.excerpt.find import Suspect, find
from fp16doctor.replay.excerpt.run import run
from fp16doctor.schema.excerpt import Excerpt, Shows
from fp16doctor.schema.tape import Tape
from fp16doctor.schema.trace import EventKind

HALF = torch.float16


def step_of(model: nn.Module, loss_of: Callable[[nn.Module], Tensor], **options: object) -> Tape:
    """Record one step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, **options)

    def train() -> None:
        loss_of(model).backward()
        optimizer.step()

    return recorded(train)[0]


def op(tape: Tape, name: str) -> int:
    return next(c.index for c in tape.ops if c.op.split(".")[1] == name)


def born(tape: Tape) -> Suspect:
    """The first event of a step, as a scan would see it."""
    event = next(
        e for e in examine(tape, with_reference=True).events if e.kind is not EventKind.INTENDED
    )
    cause = event.cause_site.index if event.cause_site else None
    return Suspect(event.site.index, cause, (Shows.NONFINITE, Shows.NONFINITE_IN_BOTH))


def ops(excerpt: Excerpt) -> list[str]:
    return [line.op.split(".")[1] for line in excerpt.lines]


def sizes(excerpt: Excerpt) -> list[tuple[int, ...]]:
    return [tuple(t.shape) for t in excerpt.given.values()]


def still_shows(excerpt: Excerpt) -> bool:
    (low,) = run(excerpt.lines, excerpt.given, (), excerpt.answer)
    (high,) = run(excerpt.lines, excerpt.given, excerpt.widened, excerpt.answer)
    index = excerpt.sample.index
    same = torch.equal(low[index].double().nan_to_num(), _number(excerpt.sample.as_run))
    return same and torch.equal(high[index].double().nan_to_num(), _number(excerpt.sample.wide))


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64).nan_to_num()


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(6, 5, dtype=HALF) + 20)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.t()


def test_one_row_and_one_column_of_a_product_that_overflows() -> None:
    def loss_of(model: nn.Module) -> Tensor:
        x = torch.ones(8, 5, dtype=HALF)
        x[6] = 3000.0
        return model(x).float().sum()

    tape = step_of(Product(), loss_of)
    found = find(tape, born(tape))
    assert found is not None
    assert (ops(found), found.shows) == (["mm"], Shows.NONFINITE)
    (rows, inner), (same, columns) = sizes(found)
    assert (rows, columns, inner == same) == (1, 1, True)
    assert found.full_size == 8 * 5 + 5 * 6
    assert found.sample.bad == found.sample.total == 1
    assert 65520 <= found.sample.wide < 70000 * 5
    assert found.widened[0] == ("float16", "float32")
    assert still_shows(found)


def test_one_element_of_an_exponential() -> None:
    tape = step_of(
        nn.Linear(3, 3).half(), lambda m: (m(torch.ones(4, 3, dtype=HALF)) + 12).exp().float().sum()
    )
    found = find(tape, born(tape))
    assert found is not None
    assert ops(found) == ["exp"]
    assert sum(t.numel() for t in found.given.values()) == 1
    assert still_shows(found)


def softmax_then_log(model: nn.Module) -> Tensor:
    scores = model(torch.ones(5, 3, dtype=HALF)) * torch.tensor([0.0, 0.0, 30.0], dtype=HALF)
    return scores.softmax(-1).log()[:, :2].float().sum()


def certain() -> nn.Module:
    torch.manual_seed(1)
    model = nn.Linear(3, 3).half()
    nn.init.constant_(model.bias, 1.0)
    return model


def test_a_boundary_is_told_with_the_op_that_rounded_onto_it() -> None:
    tape = step_of(certain(), softmax_then_log)
    suspect = Suspect(op(tape, "log"), op(tape, "_softmax"), (Shows.NONFINITE,))
    found = find(tape, suspect)
    assert found is not None
    assert ops(found) == ["_softmax", "log"]
    assert sum(t.numel() for t in found.given.values()) <= 3
    assert (found.sample.as_run, found.sample.wide < -17) == (float("-inf"), True)
    assert still_shows(found)


def test_without_a_known_cause_the_ops_upstream_are_taken_in() -> None:
    tape = step_of(certain(), softmax_then_log)
    found = find(tape, Suspect(op(tape, "log"), None, (Shows.NONFINITE,)))
    assert found is not None
    assert ops(found)[-2:] == ["_softmax", "log"]
    assert still_shows(found)


def test_a_cut_does_not_end_in_another_fault() -> None:
    """Given a mean of zeros, the division overflows in both formats' inputs: not what was found."""

    def loss_of(model: nn.Module) -> Tensor:
        small = torch.zeros(16, dtype=HALF)
        small[::4] = 2.0**-24
        mean = small.mean()  # 2**-26 rounds to 0
        return (model(torch.full((2, 3), 0.01, dtype=HALF)) / (mean.sqrt() + 1e-6)).float().sum()

    model = nn.Linear(3, 3).half()
    nn.init.constant_(model.weight, 5.0)
    tape = step_of(model, loss_of)
    found = find(tape, Suspect(op(tape, "div"), op(tape, "mean"), (Shows.NONFINITE,)))
    assert found is not None
    assert ops(found)[0] == "mean"
    assert any(bool((t == 2.0**-24).any()) for t in found.given.values())
    assert still_shows(found)


def test_integers_that_collide() -> None:
    def loss_of(model: nn.Module) -> Tensor:
        positions = torch.arange(600).to(torch.bfloat16)
        return (model(torch.ones(1, 3)) * positions.float().mean()).sum()

    tape = step_of(nn.Linear(3, 3), loss_of)
    found = find(tape, Suspect(op(tape, "_to_copy"), None, (Shows.INTEGER,)))
    assert found is not None
    assert found.given["a"].numel() == 1
    assert found.sample.as_run != found.sample.wide
    assert found.sample.wide == int(found.sample.wide)


def test_a_lost_update_shows_beside_what_the_weight_was() -> None:
    model = nn.Linear(4, 1, bias=False).half()
    nn.init.constant_(model.weight, 100.0)
    tape = step_of(
        model, lambda m: m(torch.full((2, 4), 1e-3, dtype=HALF)).float().sum(), foreach=False
    )
    found = find(tape, Suspect(op(tape, "add_"), None, (Shows.UNCHANGED,)))
    assert found is not None
    assert found.before is not None
    assert found.given[found.before].tolist() == [[100.0]]
    assert (found.sample.as_run, found.sample.wide < 100.0) == (100.0, True)
    assert still_shows(found)


def test_of_a_foreach_op_one_item_is_taken() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False).half() for _ in range(3)))
    nn.init.constant_(model[1].weight, 100.0)

    def loss_of(model: nn.Module) -> Tensor:
        x = torch.full((2, 4), 1e-2, dtype=HALF)
        return sum((layer(x).float().sum() for layer in model), torch.zeros(()))

    tape = step_of(model, loss_of, foreach=True)
    found = find(tape, Suspect(op(tape, "_foreach_add_"), None, (Shows.UNCHANGED,)))
    assert found is not None
    assert [len(a) for a in found.lines[0].args if isinstance(a, list)] == [1, 1]
    assert found.sample.as_run == 100.0
    assert still_shows(found)


def test_a_fault_of_logic_is_there_in_the_wider_format_too() -> None:
    tape = step_of(nn.Linear(3, 3), lambda m: (m(torch.ones(4, 3)) - 9).log().sum())
    found = find(tape, born(tape))
    assert found is not None
    assert (ops(found), found.shows) == (["log"], Shows.NONFINITE_IN_BOTH)
    assert found.widened[-1] == ("float32", "float64")
    assert found.given["a"].numel() == 1


def test_where_nothing_is_wrong_there_is_no_excerpt() -> None:
    tape = step_of(nn.Linear(3, 3).half(), lambda m: m(torch.ones(4, 3, dtype=HALF)).float().sum())
    every = (Shows.NONFINITE, Shows.NONFINITE_IN_BOTH, Shows.ZERO, Shows.OFF)
    assert find(tape, Suspect(op(tape, "addmm"), None, every)) is None


def test_a_random_op_is_not_run_again() -> None:
    def loss_of(model: nn.Module) -> Tensor:
        hot = nn.functional.dropout(model(torch.ones(4, 3, dtype=HALF)), 0.5)
        return (hot * 1000).exp().float().sum()

    model = nn.Linear(3, 3).half()
    nn.init.constant_(model.bias, 5.0)
    tape = step_of(model, loss_of)
    found = find(tape, Suspect(op(tape, "exp"), None, (Shows.NONFINITE, Shows.NONFINITE_IN_BOTH)))
    assert found is not None
    assert "native_dropout" not in ops(found)
