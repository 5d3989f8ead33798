"""Who makes a step's error: the planted op is named, and shares are measured and add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from curing import PURE, Job
from small_models import Language
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.replay import blame
from fp16doctor.replay.adjoint import Influence
from fp16doctor.replay.blame import Budgeted, error_budget
from fp16doctor.replay.blame_births import budget_of_births
from fp16doctor.replay.blame_words import finite_sentence
from fp16doctor.replay.second_derivatives import written_out
from fp16doctor.schema.blame import BlamedOp
from fp16doctor.schema.location import Phase
from fp16doctor.schema.spelling import number
from fp16doctor.schema.tape import Tape

Cast = Callable[[Tensor], Tensor]


def only_step(job: Job) -> Tape:
    (tape,) = job.tapes()
    return tape


def budget_of(
    model: Callable[[], nn.Module], loss: Callable[..., Tensor], **more: object
) -> Budgeted:
    return error_budget(only_step(Job(model, loss, **more)), 60)  # type: ignore[arg-type]


def squared(model: nn.Module, cast: Cast) -> Tensor:
    out: Tensor = (model(cast(torch.randn(16, 8))).float() ** 2).mean()
    return out


def language(model: nn.Module, cast: Cast) -> Tensor:
    tokens = torch.randint(0, 20, (4, 9))
    return F.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())


@pytest.fixture
def every_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure all ops, not only the leaders."""
    monkeypatch.setattr(blame, "LEADERS", 10_000)
    monkeypatch.setattr(blame, "FIRST", 10_000)
    monkeypatch.setattr(blame, "ENOUGH", 2.0)


# -- one planted op --------------------------------------------------------------------------------


class Planted(nn.Module):
    """fp16 throughout, but one op whose result has bf16's three bits less."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.inp, self.out, self.name = nn.Linear(8, 32), nn.Linear(32, 4), name

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        coarse = (h * 8).round().bfloat16() / 8  # exact in bf16: only the op behind it errs
        if self.name == "exp":
            h = h + coarse.exp().half()
        elif self.name == "softmax":
            h = h + coarse.softmax(-1).half() * 8
        else:
            h = h + (coarse.abs() + 1).sqrt().half()
        return self.out(h)


@pytest.mark.parametrize("name", ["exp", "softmax", "sqrt"])
def test_the_planted_op_makes_nearly_all_of_it(name: str) -> None:
    ops, budget = budget_of(lambda: Planted(name), squared, form=PURE)
    first = ops[0]
    assert name in first.site.op
    assert first.site.phase is Phase.FORWARD
    assert first.share is not None
    assert first.share > 0.7
    assert first.cumulative == first.share
    assert budget.sentence.startswith(("1 of ", "2 of "))
    assert f" of {budget.n_ops} ops make" in budget.sentence
    assert budget.quantity == "gradient error"
    assert budget.total > 1e-4
    assert budget.reason == ""


class Positions(nn.Module):
    """Positions that 16 bits cannot tell turn an angle by more than a full circle."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(32, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(700, 1000).bfloat16()
        angles = torch.outer(steps, torch.ones(16, dtype=torch.bfloat16) * 1.5)
        waves = torch.cat([angles.cos(), angles.sin()], -1)
        return self.out(self.mix(waves).tanh())


def test_far_from_linear_the_op_is_found_nevertheless() -> None:
    ops, budget = budget_of(Positions, squared, form=PURE, dtype=torch.bfloat16)
    first = ops[0]
    assert first.site.op == "aten._to_copy.default"
    assert first.site.phase is Phase.FORWARD
    assert first.share == pytest.approx(0.97, abs=0.02)
    assert budget.total > 0.02


def test_what_the_adjoint_does_not_see_is_found_by_halving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blame, "influence", lambda *given: Influence())
    ops, budget = budget_of(lambda: Planted("exp"), squared, form=PURE)
    assert ops[0].site.op == "aten.exp.default"
    assert ops[0].predicted == 0
    assert (ops[0].share or 0) > 0.7
    assert budget.sentence.startswith("1 of ")


# -- shares ----------------------------------------------------------------------------------------


class Chain(nn.Module):
    """Linear in its weight, op after op, each with an error of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64))

    def forward(self, x: Tensor) -> Tensor:
        x = x.repeat(1, 8)
        for k in range(6):
            x = x * (1.1 + 0.13 * k) + 0.3
        return x * self.weight


def mean_of(model: nn.Module, cast: Cast) -> Tensor:
    return model(cast(torch.randn(16, 8))).float().mean()


@pytest.mark.usefixtures("every_op")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_adjoint_and_measurement_agree_on_a_linear_toy(dtype: torch.dtype) -> None:
    ops, budget = budget_of(Chain, mean_of, form=PURE, dtype=dtype)
    assert len(ops) == budget.n_ops > 10
    assert correlation(ops, lambda o: o.share or 0.0) > 0.9
    assert correlation(ops, symmetric) > 0.999
    assert sum(map(symmetric, ops)) == pytest.approx(1, abs=1e-3)


@pytest.mark.usefixtures("every_op")
@pytest.mark.parametrize("form", ["autocast", "pure"])
def test_the_shares_of_a_whole_model_add_up(form: str) -> None:
    """Attention, norms, dropout, embedding, cross entropy, and the backward of all of them."""
    ops, budget = budget_of(Language, language, form=form, dtype=torch.bfloat16)
    assert len(ops) == budget.n_ops
    assert correlation(ops, lambda o: o.share or 0.0) > 0.98
    assert correlation(ops, symmetric) > 0.999
    assert sum(map(symmetric, ops)) == pytest.approx(1, abs=0.02)
    assert sum(o.predicted or 0.0 for o in ops) == pytest.approx(1, abs=0.02)
    assert ops[-1].cumulative == pytest.approx(1, abs=1e-6)  # all of them


def symmetric(op: BlamedOp) -> float:
    """What goes with an op, and what it makes alone: the mean is additive where errors are."""
    return ((op.share or 0.0) + (op.alone or 0.0)) / 2


def correlation(ops: tuple[BlamedOp, ...], measured: Callable[[BlamedOp], float]) -> float:
    pairs = torch.tensor([[measured(o), o.predicted] for o in ops], dtype=torch.float64)
    return float(torch.corrcoef(pairs.T)[0, 1])


def test_leaders_come_first_and_together_make_more() -> None:
    ops, budget = budget_of(Language, language, dtype=torch.bfloat16)
    shares = [o.share for o in ops if o.share is not None]
    assert shares == sorted(shares, reverse=True)
    assert 3 <= len(ops) < budget.n_ops
    joint = [o.cumulative for o in ops if o.cumulative is not None]
    assert all(a <= b + 0.01 for a, b in pairwise(joint))
    assert f"of {budget.n_ops} ops make " in budget.sentence


def test_errors_flow_where_the_script_cut_the_gradient() -> None:
    """The value behind ``detach`` is wrong as well, and the gradient of the weight with it."""

    def detached(model: nn.Module, cast: Cast) -> Tensor:
        x = (cast(torch.randn(16, 8)) * 4).round()
        with torch.no_grad():
            target = x.bfloat16().exp().half()
        return (model(cast(x / 64)).float() * target[:, :4].detach().float()).mean()

    ops, _ = budget_of(lambda: nn.Linear(8, 4), detached, form=PURE)
    assert "exp" in ops[0].site.op
    assert ops[0].predicted == pytest.approx(symmetric(ops[0]), abs=0.05)
    assert (ops[0].share or 0) > 0.8


def test_accumulated_gradients_are_one_step() -> None:
    def twice(model: nn.Module, cast: Cast) -> Tensor:
        (squared(model, cast) / 2).backward()
        return squared(model, cast) / 2

    ops, budget = budget_of(lambda: Planted("exp"), twice, form=PURE)
    assert [o.site.op for o in ops[:3]].count("aten.exp.default") == 2
    assert budget.total > 1e-4


# -- births ----------------------------------------------------------------------------------------


class Two(nn.Module):
    """Two products pass 65504; whichever is left, nothing is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x) * 1e6
        b = self.b(x) * 1e6
        return (a / 1e6) ** 2 + (b / 1e6) ** 2


def in_fp16(model: nn.Module, cast: Cast) -> Tensor:
    return model(cast(torch.randn(16, 8) + 3)).float().mean()


def test_every_birth_that_has_to_go_is_named() -> None:
    ops, budget = budget_of(Two, in_fp16)
    assert budget.quantity == "non-finite gradient elements"
    assert budget.total > 0
    births = [o for o in ops if o.site.phase is Phase.FORWARD]
    assert [o.site.op for o in births] == ["aten.mul.Tensor"] * 2
    assert ops[-1].cumulative == 1
    assert all(o.share is not None and o.share < 1 for o in births)
    assert "have to go: in fp32 there, none of " in budget.sentence


def test_births_without_time_to_follow_one_are_told_with_the_reason() -> None:
    tape = only_step(Job(Two, in_fp16))
    ops, budget = budget_of_births(tape, lambda: True)
    assert ops == ()
    assert budget.sentence == ""
    assert budget.reason == "the time budget was spent before all births were followed"


def test_a_hidden_birth_is_told_as_such() -> None:
    """The second product overflows only where the first no longer makes NaN of everything."""

    class Behind(Two):
        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x) * 1e6
            h = self.b(h / 1e6) * 1e6
            return (h / 1e6) ** 2

    ops, budget = budget_of(Behind, in_fp16)
    assert len(ops) > budget.n_ops
    assert "hidden behind others" in budget.sentence
    assert ops[-1].cumulative == 1


def test_words_name_no_op_that_makes_next_to_nothing() -> None:
    ops, whole = budget_of(lambda: Planted("exp"), squared, form=PURE)
    little = replace(ops[0], share=0.001, cumulative=0.001)
    assert finite_sentence([little], whole) == (
        f"none of the 1 leading ops of {whole.n_ops} makes 1 % of the squared gradient error of "
        f"step 0, {number(whole.total)} as run"
    )
    assert finite_sentence([], whole) == ""


# -- nothing to say --------------------------------------------------------------------------------


def test_a_step_in_fp32_has_no_such_budget() -> None:
    ops, budget = budget_of(lambda: nn.Linear(8, 4), squared, dtype=torch.float32)
    assert ops == ()
    assert budget.reason == "no op of the step rounds to 16 bits"
    assert budget.sentence == ""


def test_no_time_is_a_reason() -> None:
    ops, budget = error_budget(only_step(Job(lambda: Planted("exp"), squared, form=PURE)), 0.0)
    assert ops == ()
    assert budget.reason.startswith("the time budget was spent")


def test_a_step_too_large_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blame, "MAX_OPS", 3)
    ops, budget = budget_of(lambda: Planted("exp"), squared, form=PURE)
    assert ops == ()
    assert budget.reason.startswith("the step is too large to take apart: ")


def test_time_that_runs_out_leaves_ops_unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter([False] * 3)
    monkeypatch.setattr(blame.Clock, "over", property(lambda self: next(asked, True)))
    ops, budget = budget_of(Language, language, dtype=torch.bfloat16)
    assert any(o.share is None for o in ops)
    assert "left unmeasured" in budget.reason


# -- attention -------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_the_written_out_backward_of_attention_is_the_kernels_own(causal: bool) -> None:
    q, k, v, grad = (torch.randn(2, 3, 5, 4) for _ in range(4))
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    out, logsumexp = forward(q, k, v, 0.0, causal)
    wanted = backward(grad, q, k, v, out, logsumexp, 0.0, causal)
    again = written_out("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
    assert again is not None
    for a, b in zip(again(grad, q, k, v, out, logsumexp, 0.0, causal), wanted, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
        assert a.requires_grad
