"""Kept steps outlive the run, and only what is the same tensor is carried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from curing import Job
from replaying import watch
from torch import Tensor, nn

from fp16doctor.prescribe.links import Links
from fp16doctor.prescribe.shelf import MAX_WINDOW, WINDOW, TapeShelf
from fp16doctor.replay.trajectory import follow
from fp16doctor.schema.policy import AS_RUN
from fp16doctor.schema.tape import Tape


def mean(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    return model(cast(torch.randn(8, 4))).float().pow(2).mean()


def followed(job: Job) -> TapeShelf:
    shelf = TapeShelf()
    watch(job.real, look=lambda tape: shelf.follow(tape) if tape.backward_ends else None)
    return shelf


def test_the_window_is_the_run_from_its_start() -> None:
    job = Job(lambda: nn.Linear(4, 4), mean, optimizer=torch.optim.AdamW, steps=WINDOW + 2)
    window = followed(job).window()
    assert [t.step for t in window] == list(range(WINDOW))
    assert follow(window, AS_RUN).losses == job.real().losses[:WINDOW]
    assert WINDOW <= MAX_WINDOW


def test_an_address_that_is_given_out_again_is_not_carried_on() -> None:
    """What step 0 left at an address is something else in step 1: the recorded value counts."""
    first, second = Job(lambda: nn.Linear(4, 4), mean, steps=2).tapes()
    (number,) = [n for n, leaf in second.leaves.items() if leaf.name == "weight"]
    leaf = second.leaves[number]
    strange = replace(second, leaves=second.leaves | {number: replace(leaf, data=leaf.data + 1)})
    final = {n: second.leaves[m].data for n, k in first.keys.items()
             for m, other in second.leaves.items() if other.key == k}  # fmt: skip

    def kept(later: Tape) -> set[int]:
        earlier, links = [first], Links()
        links.note(replace(first, final=final))
        links.check(later, earlier)
        return set(earlier[0].keys.values())

    assert leaf.key in kept(second)
    assert leaf.key not in kept(strange)
    assert kept(strange) == set(first.keys.values()) - {leaf.key}
