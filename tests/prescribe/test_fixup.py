"""Fixup's initial weights are tried on the first step, where there are branches to initialise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from curing import AUTOCAST, PURE, Job
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.fixup import fixup_factor, with_fixup
from fp16doctor.prescribe.remedies.fixup_init import propose
from fp16doctor.replay.branches import branches_at
from fp16doctor.replay.parameters import parameter_values
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
    def __init__(self, block: type[Block]) -> None:
        super().__init__()
        self.body = nn.Sequential(*[block() for _ in range(BLOCKS)])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def loss(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    return F.cross_entropy(model(cast(torch.randn(6, WIDTH))).float(), torch.arange(6) % 3)


def tape_of(block: type[Block] = Block, form: str = AUTOCAST) -> Tape:
    return Job(lambda: Net(block), loss, form).tapes()[0]


def finding() -> Finding:
    site = OpSite(0, Phase.FORWARD, "aten.addmm.default", 3, module_path="body.5.down")
    return Finding(
        "FD501", "growing-residual-stream", Severity.ERROR, Fault.INITIALIZATION, "w", "c", site
    )


def test_branches_and_their_layers() -> None:
    found = branches_at(tape_of(), "body.5.down")
    assert found is not None
    assert (found.stem, found.numbers) == ("body.", tuple(range(BLOCKS)))
    assert (found.depth, found.layers) == (BLOCKS, 2)
    assert found.layer_names == ("up.weight", "down.weight")
    assert found.weights[8] == ("body.8.up.weight", "body.8.down.weight")


@pytest.mark.parametrize("block", [Plain, Normed])
def test_no_branches_where_nothing_is_added_or_all_is_normalised(block: type[Block]) -> None:
    assert branches_at(tape_of(block), "body.5") is None
    assert branches_at(tape_of(), "head") is None


def test_factors_are_those_of_the_paper() -> None:
    """arXiv 1901.09321, rule 2: m = 2 gives L^-1/2."""
    found = branches_at(tape_of(), "body.5")
    assert found is not None
    assert fixup_factor(found) == pytest.approx(1 / 3)


@pytest.mark.parametrize("form", [AUTOCAST, PURE])
def test_weights_are_replaced_and_the_tape_kept(form: str) -> None:
    tape = tape_of(form=form)
    found = branches_at(tape, "body.5")
    assert found is not None
    before, after = parameter_values(tape), parameter_values(with_fixup(tape, found))
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    assert changed == {n for names in found.weights for n in names}
    assert not after["body.2.down.weight"].any()
    expected = before["body.2.up.weight"] / 3
    assert torch.allclose(after["body.2.up.weight"], expected, rtol=2e-3)
    assert torch.equal(parameter_values(tape)["body.2.up.weight"], before["body.2.up.weight"])


def test_verified_on_the_first_step_and_its_code_does_the_same() -> None:
    tape = tape_of()
    bench = Bench((tape,), 60)
    assert not bench.as_run().accepted
    (cure,) = propose(Case((finding(),), bench))
    assert cure.verification.verdict is Verdict.VERIFIED
    assert cure.verification.steps == (0,)
    assert cure.verification.before["non-finite elements"] > 0
    torch.manual_seed(0)
    model = Net(Block)
    exec(cure.remedy.change or "", {"torch": torch, "model": model})
    found = branches_at(tape, "body.5")
    assert found is not None
    for name, wanted in parameter_values(with_fixup(tape, found)).items():
        assert torch.allclose(model.get_parameter(name), wanted, rtol=1e-5), name


def test_nothing_without_the_first_step() -> None:
    from dataclasses import replace

    bench = Bench((replace(tape_of(), step=3),), 60)
    assert not list(propose(Case((finding(),), bench)))
    assert not list(propose(Case((finding(),), None)))
