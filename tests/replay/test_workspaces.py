"""A recurrent kernel and its backward share a workspace: neither runs in another format alone.

Fed with a workspace of another format the kernel writes beyond its memory, and the process dies.
"""

from __future__ import annotations

import math

import pytest
import torch
from curing import AUTOCAST, PURE, Job
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.replay.blame import error_budget
from fp16doctor.replay.local import local_results
from fp16doctor.replay.op_traits import keeps_format
from fp16doctor.replay.solo import SoloPlayer
from fp16doctor.replay.trial import run_narrow, run_trial
from fp16doctor.schema.policy import AS_RUN, BF16, FP32
from fp16doctor.schema.tape import Tape


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(16, 24, batch_first=True), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        tags: Tensor = self.out(self.rnn(x)[0])
        return tags


def loss(model: nn.Module, cast: object) -> Tensor:
    x, y = torch.randn(8, 10, 16), torch.randint(0, 5, (80,))
    parameter = next(model.parameters())
    return F.cross_entropy(model(x.to(parameter.dtype)).float().flatten(0, 1), y)


@pytest.fixture(params=[AUTOCAST, PURE])
def tape(request: pytest.FixtureRequest) -> Tape:
    return Job(Tagger, loss, request.param, torch.bfloat16).tapes()[0]


def test_no_replay_gives_the_kernel_another_workspace(tape: Tape) -> None:
    kernels = [c for c in tape.ops if keeps_format(c.op)]
    assert {c.op.partition("_backward")[1] for c in kernels} == {"", "_backward"}
    assert all(local_results(c, SoloPlayer(tape, AS_RUN), FP32) is None for c in kernels)
    for trial in (run_narrow(tape, "fp16"), run_trial(tape, FP32), run_trial(tape, BF16)):
        assert trial.finite
        assert trial.loss is not None
        assert math.isfinite(trial.loss)
    error_budget(tape, 30.0)
