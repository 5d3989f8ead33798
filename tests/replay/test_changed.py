"""A changed number does on the tape what an edit of the line does to the script."""

from __future__ import annotations

import torch
from curing import Job, far
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.replay.changed import changed_calls, holds
from fp16doctor.replay.trial import run_trial
from fp16doctor.schema.policy import ConstantRule, PrecisionPolicy
from fp16doctor.schema.tape import Tape


def job(bound: float) -> Job:
    def loss(model: nn.Module, cast: object) -> Tensor:
        out = model(torch.randn(6, 4)).float()
        return F.mse_loss(out.clamp(min=bound) * 3.0, torch.ones(6, 3))

    return Job(lambda: nn.Linear(4, 3), loss)


def place(tape: Tape) -> str:
    (clamp,) = [c for c in tape.ops if c.op.startswith("aten.clamp")]
    assert clamp.site.source is not None
    return f"line:{clamp.site.source.file}:{clamp.site.source.line}"


def test_forward_and_backward_change_together() -> None:
    (tape,) = job(-9.0).tapes()
    rule = ConstantRule(place(tape), -9.0, 0.25)
    trial = run_trial(tape, PrecisionPolicy("edit", constants=(rule,)))
    real = job(0.25).real()
    assert trial.loss == real.losses[0]
    assert far(trial.gradients, real.gradients) < 1e-6
    assert trial.loss != job(-9.0).real().losses[0]


def test_only_that_number_at_that_place() -> None:
    (tape,) = job(-9.0).tapes()
    at = place(tape)
    assert not changed_calls(tape, (ConstantRule(at, 0.5, 1.0),))
    assert not changed_calls(tape, (ConstantRule("line:elsewhere.py:1", -9.0, 1.0),))
    changed = changed_calls(tape, (ConstantRule(at, -9.0, 1.0),))
    assert changed
    assert all(holds(tape.ops[i], -9.0) and not holds(c, -9.0) for i, c in changed.items())


def test_two_rules_on_one_line() -> None:
    (tape,) = job(-9.0).tapes()
    at = place(tape)
    rules = (ConstantRule(at, -9.0, 0.25), ConstantRule(at, 3.0, 2.0))
    trial = run_trial(tape, PrecisionPolicy("edit", constants=rules))
    assert trial.loss is not None
    assert trial.loss != run_trial(tape, PrecisionPolicy("edit", constants=rules[:1])).loss
