from __future__ import annotations

import pytest

from fp16doctor.replay.events import sample_of


@pytest.mark.parametrize(
    ("element", "shape", "batch", "sample"),
    [
        ((5, 3), (8, 10), 8, 5),
        ((44, 24), (256, 64), 8, 1),  # 32 tokens of each sample were flattened into the rows
        ((3, 7), (64, 64), 8, 0),
        ((3, 7), (10, 64), 8, None),  # rows are no multiple of the batch
        ((), (), 8, None),
        ((5,), (8,), None, None),
        ((0, 1), (1, 4), 1, None),  # a batch of one needs no telling apart
    ],
)
def test_sample_of(
    element: tuple[int, ...], shape: tuple[int, ...], batch: int | None, sample: int | None
) -> None:
    assert sample_of(element, shape, batch) == sample
