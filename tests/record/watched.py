"""What a Recorder saw of a function, in the form that tests ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fp16doctor.record.births import Birth
from fp16doctor.record.recorder import Recorder
from fp16doctor.schema.location import Phase
from fp16doctor.schema.recording import StepInfo
from fp16doctor.schema.tape import OpCall, Tape


@dataclass
class Watched:
    """What a Recorder saw of a function."""

    recorder: Recorder
    result: Any = None
    tapes: list[Tape] = field(default_factory=list)
    births: list[list[Birth]] = field(default_factory=list)
    given: list[list[Birth]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # records on the rolling tape when handed over

    @property
    def steps(self) -> list[StepInfo]:
        return self.recorder.book.steps

    @property
    def ops(self) -> list[OpCall]:
        """All ops of all tapes."""
        return [op for tape in self.tapes for op in tape.ops]

    def of(self, phase: Phase, tape: int = -1) -> list[str]:
        """Short names of the ops of one phase."""
        return [short(op.op) for op in self.tapes[tape].ops if op.site.phase is phase]

    def one(self, name: str, phase: Phase | None = None) -> OpCall:
        """The only op of that name."""
        found = [
            op
            for op in self.ops
            if short(op.op) == name and (phase is None or op.site.phase is phase)
        ]
        assert len(found) == 1, [short(op.op) for op in self.ops]
        return found[0]


def short(name: str) -> str:
    return name.split(".")[1]


Record = Callable[..., Watched]


def one_backward(record: Record, loss: Callable[[], Tensor]) -> Watched:
    """Record one step that runs ``loss`` and its backward."""

    def run() -> None:
        w = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        (loss() + w.sum()).backward()
        optimizer.step()

    return record(run)


def step_with(loss: Callable[[], Tensor]) -> Callable[[], float]:
    """Return a step that computes ``loss`` beside a sound one, seeded."""

    def run() -> float:
        torch.manual_seed(0)
        w = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        total = loss() + (w * 2).sum()
        total.backward()
        optimizer.step()
        return total.item()

    return run
