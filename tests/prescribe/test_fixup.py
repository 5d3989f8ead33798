"""Fixup's initial weights are tried from the first step on, where there are branches for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median

import pytest
import torch
from curing import AUTOCAST, PURE, Job
from torch import Tensor, nn
from torch.nn import functional as F

import fp16doctor
from fp16doctor.errors import FixupError
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.fixup_code import pasted
from fp16doctor.prescribe.fixup_weights import SEED, additions_of, plan_on, with_fixup
from fp16doctor.prescribe.remedies.fixup_init import GROWTH, propose
from fp16doctor.replay.parameters import parameter_values
from fp16doctor.replay.stream import growth_of, stream_behind
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.prescription import Verdict
from fp16doctor.schema.tape import Tape

WIDTH, BLOCKS = 8, 9


class Block(nn.Module):
    residual, norm = True, False

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.ln = nn.LayerNorm(WIDTH) if self.norm else nn.Identity()
        for layer in (self.up, self.down):
            nn.init.normal_(layer.weight, std=1.5)

    def forward(self, x: Tensor) -> Tensor:
        out = self.down(F.relu(self.up(self.ln(x))))
        return x + out if self.residual else out


class Plain(Block):
    residual = False


class Normed(Block):
    norm = True


class Net(nn.Module):
    def __init__(self, block: type[Block] = Block) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH, bias=False)
        self.body = nn.Sequential(*[block() for _ in range(BLOCKS)])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)))


def loss(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    return F.cross_entropy(model(cast(torch.randn(6, WIDTH))).float(), torch.arange(6) % 3)


def tape_of(block: type[Block] = Block, form: str = AUTOCAST) -> Tape:
    return Job(lambda: Net(block), loss, form).tapes()[0]


def finding() -> Finding:
    site = OpSite(0, Phase.FORWARD, "aten.addmm.default", 3, module_path="body.5.down")
    return Finding(
        "FD501", "growing-residual-stream", Severity.ERROR, Fault.INITIALIZATION, "w", "c", site
    )


def case(*tapes: Tape, window: tuple[Tape, ...] = ()) -> Case:
    return Case((finding(),), Bench(tapes, 60, window=window))


@pytest.mark.parametrize("form", [AUTOCAST, PURE])
def test_the_tape_has_the_plan_of_the_model(form: str) -> None:
    plan = plan_on(tape_of(form=form))
    assert plan == fp16doctor.fixup_(Net(), torch.randn(2, WIDTH), dry_run=True)
    assert plan.depth == BLOCKS
    assert plan.stds["body.2.up.weight"] == pytest.approx((2 / WIDTH) ** 0.5 / 3)
    assert plan.classifier == ("head.weight",)


@pytest.mark.parametrize("block", [Plain, Normed])
def test_nothing_where_nothing_is_added_or_all_is_normalised(block: type[Block]) -> None:
    tape = tape_of(block)
    with pytest.raises(FixupError):
        plan_on(tape)
    assert not list(propose(case(tape)))


def as_stored(value: Tensor) -> Tensor:
    """A tape may know a weight by the transposed view that a product takes."""
    return value.T if value.ndim == 2 and value.stride(0) < value.stride(1) else value


@pytest.mark.parametrize("form", [AUTOCAST, PURE])
def test_trial_function_and_pasted_code_set_the_same_bits(form: str) -> None:
    tape = tape_of(form=form)
    before, plan = parameter_values(tape), plan_on(tape)
    tried = parameter_values(with_fixup(tape, plan))
    models = [Net().to(torch.float16 if form == PURE else torch.float32) for _ in range(2)]
    exec(pasted(plan, SEED), {"torch": torch, "model": models[0]})
    given = torch.randn(2, WIDTH).to(models[1].head.weight.dtype)
    generator = torch.Generator().manual_seed(SEED)
    fp16doctor.fixup_(models[1], given, generator=generator)
    for model in models:
        for name, value in model.named_parameters():
            assert torch.equal(value.detach().float(), as_stored(tried[name])), name
    assert torch.equal(parameter_values(tape)["stem.weight"], before["stem.weight"])


def test_pasted_code_of_alike_blocks_is_one_line() -> None:
    plan = plan_on(tape_of())
    he = f"(2 / 8) ** 0.5 * {BLOCKS} ** -0.5"
    assert f"{{f'body.{{i}}.up.weight': {he} for i in range({BLOCKS})}}" in pasted(plan, SEED)
    odd = replace(plan, stds={"a.0.weight": 1.0, "a.3.weight": 1.0, "w": 0.5, "b.7.x": 0.0})
    lines = pasted(odd, SEED).splitlines()
    assert "stds = {f'a.{i}.weight': (2 / 2) ** 0.5 for i in (0, 3)}" in lines
    assert "stds |= {'w': (2 / 8) ** 0.5}" in lines
    assert "zeros = ['b.7.x']" in lines


def test_verified_on_the_first_step_with_the_growth_of_the_stream() -> None:
    bench = Bench((tape_of(),), 60)
    assert not bench.as_run().accepted
    (cure,) = propose(Case((finding(),), bench))
    proof = cure.verification
    assert (proof.verdict, proof.steps) == (Verdict.VERIFIED, (0,))
    assert proof.before["non-finite elements"] > 0
    assert proof.before[GROWTH] > 2  # (1.5²·8)·(1.5²·8)/2 of variance a block: 3.7 binades
    assert proof.after[GROWTH] == 0
    assert [b.place for b in proof.stream] == [f"body.{i}" for i in range(BLOCKS)]
    assert growth_of([b.before for b in proof.stream]) == proof.before[GROWTH]
    assert len({b.after for b in proof.stream}) == 1  # a branch of 0 adds nothing
    assert 0 < proof.stream[0].after.std < proof.stream[-1].before.std
    assert cure.remedy.target == ("module:body.*",)
    assert cure.remedy.title.startswith(f"initialise the {BLOCKS} branches of `body` by Fixup")


def test_the_growth_is_that_of_the_forward_pass() -> None:
    tape = tape_of()
    torch.manual_seed(0)
    model, sizes = Net(), []
    for block in model.body:
        block.register_forward_hook(lambda m, a, out: sizes.append(float(out.detach().abs().max())))
    model(torch.randn(6, WIDTH))
    gains = torch.tensor(sizes).log2().diff().tolist()
    additions = additions_of(tape)
    assert len(additions) == BLOCKS
    found = stream_behind(tape, additions)
    assert growth_of(found) == pytest.approx(median(gains), abs=1e-3)
    assert [s.amax for s in found] == pytest.approx(sizes, rel=1e-3)


@pytest.mark.parametrize("scaler", [0.0, 65536.0])
def test_followed_over_the_first_steps(scaler: float) -> None:
    """With a scaler every step was skipped; without one the weights were lost on the first."""
    tapes = Job(Net, loss, steps=5, scaler=scaler).tapes()
    (cure,) = propose(case(tapes[0], window=tuple(tapes)))
    assert cure.verification.verdict is Verdict.VERIFIED, cure.verification.reason
    assert cure.verification.after["loss after 5 steps"] < 2


def test_a_window_that_starts_later_is_not_followed() -> None:
    tapes = Job(Net, loss, steps=6).tapes()
    (cure,) = propose(case(tapes[0], window=tuple(tapes[1:])))
    assert "loss after 5 steps" not in cure.verification.after


def test_nothing_without_the_first_step() -> None:
    assert not list(propose(case(replace(tape_of(), step=3))))
    assert not list(propose(Case((finding(),), None)))
