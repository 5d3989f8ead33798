"""Which of several training processes this one is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch import nn
from watched import Record, step_with

from fp16doctor.pipeline import summary
from fp16doctor.record.ranks import ALONE, cautions, joined, launched_as


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [
        ({}, ALONE),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}, (3, 8)),
        ({"RANK": "1"}, ALONE),
        ({"RANK": "gold", "WORLD_SIZE": "2"}, ALONE),
        ({"RANK": "2", "WORLD_SIZE": "2"}, ALONE),  # not one of two
    ],
)
def test_as_the_launcher_says(environment: dict[str, str], ranks: tuple[int, int]) -> None:
    assert launched_as(environment) == ranks


def test_alone_nothing_is_said() -> None:
    assert cautions(ALONE) == ()
    assert joined() is None


def test_other_ranks_are_said_to_be_unseen() -> None:
    (said,) = cautions((1, 4))
    assert said.slug == "other-ranks"
    assert said.message.startswith("one rank of 4 was seen, rank 1;")


@pytest.fixture
def group() -> Iterator[None]:
    """A fake group of four, whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_a_group_that_the_script_joins_by_itself(record: Record) -> None:
    """mpirun and torch.multiprocessing set no variable; sites name the rank as well."""
    model = nn.Linear(2, 2)
    seen = record(step_with(lambda: model(model.weight).sum()))
    assert seen.recorder.book.ranks == (2, 4)
    assert {op.site.rank for op in seen.tapes[-1].ops} == {2}
    assert [c.slug for c in summary.warnings(seen.recorder)] == ["other-ranks"]
