"""He's initial weights are tried where a plain network's own are too large."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from curing import AUTOCAST, PURE, Job
from refusing import scanned
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.he_weights import oversized_layers, with_he
from fp16doctor.prescribe.remedies.he_init import propose
from fp16doctor.replay.parameters import parameter_values
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.prescription import RecommendationStatus, RemedyKind, Verdict

WIDTH, DEPTH = 16, 10


def net(std: float = 1.5) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(DEPTH):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        nn.init.normal_(layers[-2].weight, std=std)
    return nn.Sequential(*layers, nn.Linear(WIDTH, 3))


def loss(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    return F.cross_entropy(model(cast(torch.randn(6, WIDTH))).float(), torch.arange(6) % 3)


def finding() -> Finding:
    return Finding(
        "FD502", "oversized-initial-weights", Severity.ERROR, Fault.INITIALIZATION, "w", "c", None
    )


@pytest.mark.parametrize("form", [AUTOCAST, PURE])
def test_only_oversized_weights_are_drawn_anew(form: str) -> None:
    (tape,) = Job(net, loss, form).tapes()
    found = oversized_layers(tape)
    assert found == {f"{2 * i}.weight": "relu" for i in range(DEPTH)}
    before, after = parameter_values(tape), parameter_values(with_he(tape, found))
    assert {n for n in before if not torch.equal(before[n], after[n])} == set(found)
    for name in found:
        assert float(after[name].std()) == pytest.approx((2 / WIDTH) ** 0.5, rel=0.25)


@pytest.mark.parametrize("form", [AUTOCAST, PURE])
def test_the_fan_in_is_the_parameters_own_however_the_tape_knows_it(form: str) -> None:
    """A product takes a stored half weight transposed: 16 rows of 64 have a fan_in of 64."""

    def funnel() -> nn.Sequential:
        model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH), nn.ReLU())
        for layer in (model[0], model[2]):
            nn.init.normal_(layer.weight, std=1.5)
        return model

    (tape,) = Job(funnel, loss, form).tapes()
    after = parameter_values(with_he(tape, oversized_layers(tape)))
    assert float(after["0.weight"].std()) == pytest.approx((2 / WIDTH) ** 0.5, rel=0.1)
    assert float(after["2.weight"].std()) == pytest.approx((2 / 64) ** 0.5, rel=0.1)


def test_verified_on_the_first_step_and_the_ones_behind_it_and_its_code_runs() -> None:
    tapes = tuple(Job(net, loss, steps=5).tapes())
    bench = Bench(tapes[:1], 60, window=tapes)
    assert not bench.as_run().accepted
    (cure,) = propose(Case((finding(),), bench))
    assert cure.verification.verdict is Verdict.VERIFIED
    assert cure.verification.before["non-finite elements"] > 0
    assert "loss after 5 steps" in cure.verification.after
    model = net()
    exec(cure.remedy.change, {"torch": torch, "model": model})
    assert float(model[0].weight.detach().std()) == pytest.approx((2 / WIDTH) ** 0.5, rel=0.25)


def test_refuted_where_the_overflow_is_not_theirs() -> None:
    def hot(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        return (model(cast(torch.randn(6, WIDTH) * 6e4)) * 1e4).float().square().mean()

    (tape,) = Job(net, hot).tapes()
    (cure,) = propose(Case((finding(),), Bench((tape,), 60)))
    assert cure.verification.verdict is Verdict.REFUTED


def test_nothing_without_the_first_step_or_without_oversized_weights() -> None:
    assert not list(propose(Case((finding(),), None)))
    (tape,) = Job(lambda: net(0.3), loss).tapes()
    assert not list(propose(Case((finding(),), Bench((tape,), 60))))


def test_a_run_is_told_to_change_its_weights_and_not_its_format() -> None:
    def script() -> None:
        torch.manual_seed(0)
        model = net().half()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            optimizer.zero_grad()
            loss(model, Tensor.half).backward()
            optimizer.step()

    _, diagnosis = scanned(script)
    leading = diagnosis.findings[0]
    assert (leading.code, leading.subsumes[0]) == ("FD502", "FD101")
    assert diagnosis.recommendation.status is RecommendationStatus.PRESCRIBED
    (chosen,) = diagnosis.recommendation.prescriptions
    assert diagnosis.prescriptions[chosen].remedy.kind is RemedyKind.FIXUP_INIT
