"""The edited step is that of the really edited script: loss and gradients, bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from curing import AUTOCAST, Job
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fp16doctor.replay.guards import Guard, guarded
from fp16doctor.replay.op_traits import base
from fp16doctor.replay.trial import run_trial
from fp16doctor.schema.location import Phase
from fp16doctor.schema.policy import AS_RUN, FP32
from fp16doctor.schema.tape import Tape

EPS = 1e-4
Bare = Callable[[Tensor], Tensor]
Net = Callable[[], nn.Module]


def net() -> nn.Module:
    return nn.Linear(4, 6)


# Each: (what the script computes, what it computes with the guard, op, argument, guard).
def log(r: Tensor) -> Tensor:
    return r.log()


def log_(r: Tensor) -> Tensor:
    return r.clamp(min=EPS).log()


def entropy(r: Tensor) -> Tensor:
    return r * torch.log(r)


def entropy_(r: Tensor) -> Tensor:
    return r * torch.log(r.clamp(min=EPS))


def log2(r: Tensor) -> Tensor:
    return r.log2()


def log2_(r: Tensor) -> Tensor:
    return r.clamp(min=EPS).log2()


def log10(r: Tensor) -> Tensor:
    return r.log10()


def log10_(r: Tensor) -> Tensor:
    return r.clamp(min=EPS).log10()


def log1p(r: Tensor) -> Tensor:
    return (-r.sign()).mul(1.0).add(r * 0).log1p()


def log1p_(r: Tensor) -> Tensor:
    return (-r.sign()).mul(1.0).add(r * 0).clamp(min=EPS - 1).log1p()


def all_masked(r: Tensor) -> Tensor:
    return r + torch.where(r == 0, -torch.inf, 0.0)


def logsumexp(r: Tensor) -> Tensor:
    x = all_masked(r)
    return torch.logsumexp(x, -1).clamp(min=-9)


def logsumexp_(r: Tensor) -> Tensor:
    x = all_masked(r)
    return torch.logsumexp(x.clamp(min=-1e4), -1).clamp(min=-9)


def root(r: Tensor) -> Tensor:
    return r.pow(2).sum(-1).sqrt()


def root_(r: Tensor) -> Tensor:
    return (r.pow(2).sum(-1) + EPS).sqrt()


def bounded_root(r: Tensor) -> Tensor:
    return (r - 0.1).sqrt()


def bounded_root_(r: Tensor) -> Tensor:
    return (r - 0.1).clamp(min=EPS).sqrt()


def power(r: Tensor) -> Tensor:
    return r**0.5


def power_(r: Tensor) -> Tensor:
    return (r + EPS) ** 0.5


def inverse_root(r: Tensor) -> Tensor:
    return r.rsqrt()


def inverse_root_(r: Tensor) -> Tensor:
    return (r + EPS).rsqrt()


def share(r: Tensor) -> Tensor:
    return (r + 1) / r.sum(1, keepdim=True)


def share_(r: Tensor) -> Tensor:
    return (r + 1) / r.sum(1, keepdim=True).clamp(min=EPS)


def quotient(r: Tensor) -> Tensor:
    return r.sum(1) / r.max(1).values


def quotient_(r: Tensor) -> Tensor:
    return r.sum(1) / r.max(1).values.clamp(min=EPS)


def mean(r: Tensor) -> Tensor:
    return (r * (r > 0.5)).sum(1) / (r > 0.5).sum(1)


def mean_(r: Tensor) -> Tensor:
    return (r * (r > 0.5)).sum(1) / (r > 0.5).sum(1).clamp(min=1)


def angle(r: Tensor) -> Tensor:
    return torch.acos(1 - r)


def angle_(r: Tensor) -> Tensor:
    return torch.acos((1 - r).clamp(-1 + 1e-3, 1 - 1e-3))


def arc(r: Tensor) -> Tensor:
    return torch.asin(2 * r)


def arc_(r: Tensor) -> Tensor:
    return torch.asin((2 * r).clamp(-1 + 1e-3, 1 - 1e-3))


def both(r: Tensor) -> Tensor:
    return -(0.3 * torch.log(r) + 0.7 * torch.log(1 - r))


def both_(r: Tensor) -> Tensor:
    return -(0.3 * torch.log(r.clamp(min=EPS)) + 0.7 * torch.log((1 - r).clamp(min=EPS)))


KINDS = [
    (both, both_, "log", 0, {"low": EPS}),
    (log, log_, "log", 0, {"low": EPS}),
    (entropy, entropy_, "log", 0, {"low": EPS}),
    (log2, log2_, "log2", 0, {"low": EPS}),
    (log10, log10_, "log10", 0, {"low": EPS}),
    (log1p, log1p_, "log1p", 0, {"low": EPS - 1}),
    (logsumexp, logsumexp_, "logsumexp", 0, {"low": -1e4}),
    (root, root_, "sqrt", 0, {"add": EPS}),
    (bounded_root, bounded_root_, "sqrt", 0, {"low": EPS}),
    (power, power_, "pow", 0, {"add": EPS}),
    (inverse_root, inverse_root_, "rsqrt", 0, {"add": EPS}),
    (share, share_, "div", 1, {"low": EPS}),
    (quotient, quotient_, "div", 1, {"low": EPS}),
    (mean, mean_, "div", 1, {"low": 1}),
    (angle, angle_, "acos", 0, {"low": -1 + 1e-3, "high": 1 - 1e-3}),
    (arc, arc_, "asin", 0, {"low": -1 + 1e-3, "high": 1 - 1e-3}),
]


def job(function: Bare, *, half: bool) -> Job:
    def loss(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        keep = torch.ones(5, 1, dtype=torch.float16)
        keep[2] = 0
        r = model(cast(torch.randn(5, 4))).abs() * keep
        return function(r if half else r.float()).float().sum()

    return Job(net, loss, AUTOCAST)


def edited(tape: Tape, op: str, place: int, bounds: dict[str, float]) -> Tape:
    """Guard the op that the function above computes."""
    sites = (c.site.source for c in tape.ops if base(c.op) == op and c.site.phase is Phase.LOSS)
    line = next(s for s in sites if s is not None and s.function != "job.<locals>.loss")
    found = guarded(tape, Guard(line, op, place, **bounds))
    assert found is not None
    return found


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "fp16"])
@pytest.mark.parametrize(("bare", "real", "op", "place", "bounds"), KINDS,
                         ids=[k[0].__name__ for k in KINDS])  # fmt: skip
def test_the_edited_step_is_that_of_the_edited_script(
    bare: Bare, real: Bare, op: str, place: int, bounds: dict[str, float], half: bool
) -> None:
    (tape,) = job(bare, half=half).tapes()
    trial = run_trial(edited(tape, op, place, bounds), AS_RUN)
    meant = job(real, half=half).real()
    assert trial.loss == meant.losses[0]
    assert trial.gradients.keys() == meant.gradients.keys()
    for name, gradient in meant.gradients.items():
        torch.testing.assert_close(trial.gradients[name], gradient, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("bare", "real", "op", "place", "bounds"), KINDS,
                         ids=[k[0].__name__ for k in KINDS])  # fmt: skip
def test_what_was_not_finite_is(
    bare: Bare, real: Bare, op: str, place: int, bounds: dict[str, float]
) -> None:
    (tape,) = job(bare, half=False).tapes()
    assert not run_trial(tape, AS_RUN).finite
    assert run_trial(edited(tape, op, place, bounds), FP32).finite


def test_a_line_without_the_op_is_as_it_was() -> None:
    (tape,) = job(log, half=False).tapes()
    (other,) = job(root, half=False).tapes()
    line = next(c.site.source for c in other.ops if base(c.op) == "sqrt")
    assert line is not None
    assert guarded(tape, Guard(line, "sqrt", 0, add=EPS)) is tape


def test_two_ops_with_one_operand_are_left() -> None:
    (tape,) = job(lambda r: r.log() - 2 * r.log(), half=False).tapes()
    line = next(c.site.source for c in tape.ops if base(c.op) == "log")
    assert line is not None
    assert guarded(tape, Guard(line, "log", 0, low=EPS)) is None


def means(r: Tensor) -> Tensor:
    return r.sum(1) / r.max(1).values


def rescaled(r: Tensor) -> Tensor:
    return torch.log(r).mul(r)


def rescaled_(r: Tensor) -> Tensor:
    return torch.log(r.clamp(min=EPS)).mul(r)


def test_a_checkpoint_that_computes_the_op_again_is_edited_there_too() -> None:
    def again(function: Bare) -> Bare:
        return lambda r: checkpoint(lambda x: function(x) * 1.5, r, use_reentrant=False)

    (tape,) = job(again(rescaled), half=False).tapes()
    trial = run_trial(edited(tape, "log", 0, {"low": EPS}), AS_RUN)
    meant = job(again(rescaled_), half=False).real()
    assert trial.loss == meant.losses[0]
    assert all(torch.equal(trial.gradients[n], g) for n, g in meant.gradients.items())


def test_a_checkpoint_that_stops_in_front_of_the_op_is_left() -> None:
    """Nothing behind the quotient is saved: backward reads a divisor that no op was given."""
    (tape,) = job(lambda r: checkpoint(means, r, use_reentrant=False), half=False).tapes()
    line = next(c.site.source for c in tape.ops if base(c.op) == "div")
    assert line is not None
    assert guarded(tape, Guard(line, "div", 1, low=EPS)) is None


def test_a_cast_that_autocast_makes_stands_behind_the_guard() -> None:
    """The line has no cast: a guard in it acts in the format in front of the cast."""

    def loss(model: nn.Module, cast: Callable[[Tensor], Tensor], eps: float = 0.0) -> Tensor:
        keep = torch.ones(5, 1, dtype=torch.float16)
        keep[2] = 0
        r = model(cast(torch.randn(5, 4))).abs() * keep
        return wide_log(r + eps if eps else r).sum()

    def real(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        return loss(model, cast, eps=EPS)

    (tape,) = Job(net, loss, AUTOCAST).tapes()
    line = next(c.site.source for c in tape.ops if base(c.op) == "log")
    assert line is not None
    found = guarded(tape, Guard(line, "log", 0, add=EPS))
    assert found is not None
    trial, meant = run_trial(found, AS_RUN), Job(net, real, AUTOCAST).real()
    assert trial.loss == meant.losses[0]
    assert all(torch.equal(trial.gradients[n], g) for n, g in meant.gradients.items())


def wide_log(r: Tensor) -> Tensor:
    return r.float().log()


def test_a_backward_that_is_not_known_is_left() -> None:
    (tape,) = job(lambda r: torch.atan2(r, r), half=False).tapes()
    line = next(c.site.source for c in tape.ops if base(c.op) == "atan2")
    assert line is not None
    assert guarded(tape, Guard(line, "atan2", 0, low=EPS)) is None
