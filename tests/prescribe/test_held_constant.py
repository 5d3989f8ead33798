"""Constants that 16 bits round to 0 or 1 are found, changed on the tape, and tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from curing import PURE, Job
from making import event, observed, plain, trace
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.formats.number_format import get_format
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.edit import with_number
from fp16doctor.prescribe.remedies.held_constant import propose
from fp16doctor.prescribe.vanishing import edited, instead, vanishing
from fp16doctor.replay.trial import run_trial
from fp16doctor.schema.policy import AS_RUN
from fp16doctor.schema.prescription import Prescription, RemedyKind, Verdict
from fp16doctor.schema.tape import Tape


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("fp16", 1e-8, 1e-4),
        ("fp16", 1e-12, 1e-4),
        ("fp16", -1e-8, -1e-4),
        ("fp16", 2.0**-25, 1e-4),  # the tie rounds to even, which is 0
        ("fp16", 1e-7, None),  # subnormal, but not 0
        ("fp16", 0.9999, 1 - 2.0**-10),
        ("fp16", -0.9999, 2.0**-10 - 1),
        ("fp16", 0.999, None),
        ("bf16", 1e-8, None),
        ("bf16", 0.999, 1 - 2.0**-7),
        ("fp16", 0.0, None),
        ("fp16", 1.0, None),
    ],
)
def test_what_stands_in(name: str, value: float, wanted: float | None) -> None:
    found = instead(value, get_format(name))
    assert found == (None if wanted is None else pytest.approx(wanted))
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[name]
    if wanted is not None:  # it vanishes, and what stands in for it does not
        assert torch.tensor(value).to(dtype) in (0.0, 1.0, -1.0)
        assert torch.tensor(found).to(dtype) not in (0.0, 1.0, -1.0)


class Normed(nn.Module):
    """Rows of zeros are divided by their length and an eps."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.head = nn.Linear(4, 8, bias=False), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        h = h / (h.abs().sum(-1, keepdim=True) + 1e-8)
        return self.head(h)


class Faint(Normed):
    """The same, and a product that overflows whatever the eps is."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1e5 * 1e5


def loss(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    x = torch.randn(6, 4)
    x[2] = 0
    return F.cross_entropy(model(cast(x)).float(), torch.arange(6) % 3)


def tapes_of(model: type[nn.Module] = Normed, **options: object) -> tuple[Tape, ...]:
    return tuple(replace(Job(model, loss, PURE), **options).tapes())  # type: ignore[arg-type]


def proposed(tapes: tuple[Tape, ...]) -> list[Prescription]:
    """For a fault at the last op of the first step."""
    born = event(index=len(tapes[0].ops) - 1, module_path="", op="aten.div.Tensor")
    findings = diagnose(observed(trace(born), steps=plain(1)))[0]
    return list(propose(Case(findings, Bench(tapes[:1], 60, window=tapes))))


def test_found_on_the_tape_and_changed() -> None:
    (tape,) = tapes_of()
    (found,) = vanishing(tape, len(tape.ops))
    assert (found.rule.old, found.rule.new, found.format) == (1e-8, 1e-4, "fp16")
    assert not vanishing(tape, found.site.index - 1)
    assert not run_trial(tape, AS_RUN).finite
    assert run_trial(edited(tape, (found,)), AS_RUN).finite


def test_verified_with_the_script_s_own_line() -> None:
    (cure,) = proposed(tapes_of(steps=4))
    assert cure.remedy.kind is RemedyKind.CODE_FIX
    assert cure.remedy.title == "use eps 0.0001 in place of 1e-8, which is 0 in fp16"
    assert "+ h = h / (h.abs().sum(-1, keepdim=True) + 0.0001)" in cure.remedy.change
    proof = cure.verification
    assert proof.verdict is Verdict.VERIFIED
    assert proof.before["non-finite elements"] > 0 == proof.after["non-finite elements"]
    assert "loss after 4 steps" in proof.after
    assert proof.reason == "judged against fp32 with the same constants"


def test_the_eps_of_an_optimizer() -> None:
    class Plain(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3)

    (cure,) = proposed(tapes_of(Plain, optimizer=torch.optim.Adam, options={"lr": 1e-3}))
    assert cure.verification.verdict is Verdict.VERIFIED
    assert cure.remedy.change.endswith("is made: pass 0.0001 for what is 1e-08")


def test_nothing_where_it_does_not_help_or_nothing_vanishes() -> None:
    assert not proposed(tapes_of(Faint))
    assert not proposed(tapes_of(dtype=torch.bfloat16))
    assert not list(propose(Case((), None)))


def test_a_bound_next_to_one_is_a_sum_on_the_line() -> None:
    line = "p = p.clamp(1e-6, 1 - 1e-6)"
    assert with_number(line, 1 - 1e-6, "TOP") == "p = p.clamp(1e-6, TOP)"
    assert with_number(line, 1e-6, "LOW") is None  # it is there twice
