"""The shortest keep-list is found, costed, refused where it is no list, and its code works."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from curing import AUTOCAST, PURE, Job, far
from deep import Deep, classified
from making import event, observed, plain, trace
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.apply.keep_fp32 import keep_fp32
from fp16doctor.diagnose.engine import diagnose
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.cost import cost_of
from fp16doctor.prescribe.paste import pasted
from fp16doctor.prescribe.remedies.keep_list import propose
from fp16doctor.prescribe.search import grow, policy_of, shrink
from fp16doctor.prescribe.treatable import line_target, target
from fp16doctor.replay.trial import run_trial
from fp16doctor.schema.policy import KeepRule
from fp16doctor.schema.prescription import Prescription, Verdict

FORMS = (AUTOCAST, PURE)


def bench_of(*gains: float, form: str = AUTOCAST, budget: float = 60) -> Bench:
    job = Job(lambda: Deep(*gains), classified, form, steps=2)
    return Bench(tuple(job.tapes()[:1]), budget)


def found(bench: Bench, *start: str) -> tuple[str, ...] | None:
    attempt = grow(bench, start, target)
    return None if attempt is None else tuple(r.pattern for r in shrink(bench, attempt).policy.keep)


@pytest.mark.parametrize("form", FORMS)
def test_the_one_module(form: str) -> None:
    bench = bench_of(1, 1e6, 1, form=form)
    assert not bench.as_run().accepted
    assert found(bench, "module:blocks.1") == ("module:blocks.1",)


@pytest.mark.parametrize("form", FORMS)
def test_two_modules_from_the_first_birth(form: str) -> None:
    """The second fault shows once the first is cured: the list grows over births."""
    bench = bench_of(1e6, 1, 1e6, form=form)
    assert found(bench, "module:blocks.0") == ("module:blocks.0", "module:blocks.2")


def test_what_the_list_does_not_need_is_left_out() -> None:
    bench = bench_of(1, 1e6, 1)
    start = ("module:head", "module:blocks.1", "module:inp", "module:blocks.0")
    assert found(bench, *start) == ("module:blocks.1",)


def test_lines_are_found_as_well() -> None:
    bench = bench_of(1, 1e6, 1)
    births = bench.as_run().trials[0].births
    (attempt,) = [grow(bench, tuple(line_target(b) for b in births), line_target)]
    assert attempt is not None
    (rule,) = shrink(bench, attempt).policy.keep
    assert rule.kind == "line"
    assert "deep.py:" in rule.pattern


def test_nothing_is_found_where_nothing_is_born() -> None:
    """Lost gradients are no birth: no place to add."""

    def faint(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        return classified(model, cast) * 1e-9

    (tape,) = Job(lambda: Deep(1), faint).tapes()
    bench = Bench((tape,), 60)
    assert found(bench, "module:head") is None


def test_a_mask_is_no_birth() -> None:
    class Masked(Deep):
        def forward(self, x: Tensor) -> Tensor:
            mask = torch.full((8,), 0.0).log()
            weights = torch.softmax(self.inp(x) + torch.where(torch.arange(8) > 6, mask, 0.0), -1)
            return self.head(self.blocks[0](weights.to(x.dtype)))

    bench = Bench(tuple(Job(lambda: Masked(1e6), classified).tapes()), 60)
    assert found(bench, "module:blocks.0") == ("module:blocks.0",)


# -- the remedy ----------------------------------------------------------------------------------


def proposed(bench: Bench | None, module: str = "blocks.1") -> list[Prescription]:
    findings = diagnose(observed(trace(event(module_path=module)), steps=plain(1)))[0]
    return list(propose(Case(findings, bench)))


def test_the_remedy_says_targets_cost_and_proof() -> None:
    first, *others = proposed(bench_of(1, 1e6, 1))
    assert first.verification.verdict is Verdict.VERIFIED
    assert first.verification.before["non-finite elements"] > 0
    assert first.verification.after["non-finite elements"] == 0
    assert first.verification.after["gradient error"] < 0.01
    assert first.remedy.cost["flops_share"] < 0.5
    assert first.verification.steps == (0,)
    shares = [p.remedy.cost["flops_share"] for p in (first, *others)]
    assert shares == sorted(shares)


def test_more_than_half_of_the_work_is_no_list() -> None:
    """The modules are nearly all of the model; what the line computes beside them is little."""
    (cure,) = proposed(bench_of(1e6, 1e6, 1e6, 1e6), "blocks.0")
    (place,) = cure.remedy.target
    assert place.startswith("line:")
    assert cure.verification.verdict is Verdict.VERIFIED
    assert cure.remedy.cost["flops_share"] < 0.1


def test_the_op_alone_where_the_line_is_nearly_everything() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.eye(8, 4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.mul(F.linear(x, self.w), 1e6).div(1e6)

    bench = Bench(tuple(Job(Functional, classified).tapes()), 60)
    born = event(op="aten.mul.Tensor", module_path="")
    findings = diagnose(observed(trace(born), steps=plain(1)))[0]
    (cure,) = propose(Case(findings, bench))
    assert cure.verification.verdict is Verdict.VERIFIED
    assert cure.remedy.target == ("op:aten.mul",)
    assert "+ return torch.mul(F.linear(x, self.w).float(), 1e6).div(1e6)" in cure.remedy.change


def shares_of(score: Tensor) -> Tensor:
    e = torch.exp(score - 24)
    total = e.sum(-1, keepdim=True) * 1.0
    return e / total


class Pool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        return shares_of(self.score(x))


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool, self.head = Pool(), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(x))


def test_the_function_where_its_module_is_nearly_everything() -> None:
    """The line between those of the births rounds to 0 as well, and bears nothing."""
    bench = Bench(tuple(Job(Pooled, classified).tapes()), 60)
    birth = bench.as_run().trials[0].births[0]
    born = replace(event(op="aten.div.Tensor"), site=birth)
    cures = list(propose(Case(diagnose(observed(trace(born), steps=plain(1)))[0], bench)))
    assert [c.remedy.target for c in cures] == [(f"function:{__file__}:shares_of",)]
    assert cures[0].verification.verdict is Verdict.VERIFIED
    assert "shares_of: put @fp16doctor.keep_fp32 on the line above" in cures[0].remedy.change
    decorated = Bench(tuple(Job(Decorated, classified).tapes()), 60)
    assert decorated.as_run().accepted


class Decorated(Pooled):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(keep_fp32(shares_of)(self.pool.score(x)))


def test_a_list_that_does_not_help_is_told_as_refuted() -> None:
    (tape,) = Job(lambda: Deep(1), lambda m, c: classified(m, c) * 1e-9).tapes()
    (refuted,) = proposed(Bench((tape,), 60), "head")
    assert refuted.verification.verdict is Verdict.REFUTED
    assert "gradient is lost" in refuted.verification.reason


def test_without_budget_it_is_not_verified() -> None:
    (untried,) = proposed(bench_of(1, 1e6, 1, budget=0.0))
    assert untried.verification.verdict is Verdict.NOT_VERIFIED
    assert untried.verification.reason == "the time budget was spent"


# -- what it costs -------------------------------------------------------------------------------


def test_shares() -> None:
    (tape,) = Job(lambda: Deep(1, 1), classified).tapes()

    def share(*patterns: str) -> dict[str, float]:
        return cost_of(tape, tuple(map(KeepRule, patterns)))

    assert share("op:aten") == {"flops_share": 1.0, "bytes_share": 1.0}
    assert share("module:nowhere") == {"flops_share": 0.0, "bytes_share": 0.0}
    one, two = share("module:blocks.0"), share("module:blocks.*")
    assert two["flops_share"] == pytest.approx(2 * one["flops_share"], rel=0.1)
    wide = share("module:blocks.0", "module:blocks.1", "module:inp", "module:head")
    assert two["flops_share"] < wide["flops_share"] < 1


def test_flops_of_a_matrix_product_and_its_backward() -> None:
    """Three products of 2·m·k·n for each of two layers, but no gradient of the batch."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))

    job = Job(Two, lambda m, c: m(c(torch.randn(256, 64))).float().mean())
    (tape,) = job.tapes()
    a, b = (cost_of(tape, (KeepRule(f"module:{n}"),))["flops_share"] for n in "ab")
    assert a == pytest.approx(2 / 5, abs=0.02)
    assert b == pytest.approx(3 / 5, abs=0.02)


# -- the code to paste ---------------------------------------------------------------------------


class Wrapped(nn.Module):
    """Tuples, keywords and integers go into the kept module; half-precision layers come after."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.rnn, self.head = nn.Linear(4, 6), nn.LSTM(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        state = h.new_zeros(1, *h.shape[1:])
        out, _ = self.rnn(h, hx=(state, state))
        return self.head(out + h)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("names", [("blocks.1",), ("blocks.0", "blocks.1"), ("head",)])
def test_the_code_does_what_the_trial_did(form: str, names: tuple[str, ...]) -> None:
    job = Job(lambda: Deep(1, 1e6, 1), classified, form)
    assert_same(job, names)


@pytest.mark.parametrize("form", FORMS)
def test_the_code_casts_what_is_nested(form: str) -> None:
    assert_same(Job(Wrapped, lambda m, c: m(c(torch.randn(3, 2, 4))).float().mean(), form,
                    torch.bfloat16), ("rnn",))  # fmt: skip


class Named(nn.Module):
    """The layer behind the kept one is given its input by name."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(input=self.inp(x))


@pytest.mark.parametrize("form", FORMS)
def test_the_code_casts_what_is_given_by_name(form: str) -> None:
    assert_same(Job(Named, lambda m, c: m(c(torch.randn(3, 4))).float().mean(), form,
                    torch.bfloat16), ("inp",))  # fmt: skip


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.mid = nn.Embedding(7, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 7, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.mid(self.tokens(ids)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["tokens", "head"])
def test_tied_weights_have_one_format(form: str, name: str) -> None:
    """Stored in 16 bits, who shares the weight of a kept module is kept as well."""

    def predicted(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        ids = torch.arange(6).reshape(2, 3)
        return F.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten())

    job = Job(Tied, predicted, form)
    assert_same(job, (name,))
    code = pasted((f"module:{name}",), "cpu", job.tapes()[0])
    assert ("for name in ['head', 'tokens']" in code or "['tokens', 'head']" in code) is (
        form == PURE
    )


def assert_same(job: Job, names: tuple[str, ...]) -> None:
    targets = tuple(f"module:{n}" for n in names)
    (tape,) = job.tapes()
    trial = run_trial(tape, policy_of(targets))

    def patched() -> nn.Module:
        model = job.model().to(job.dtype if job.form == PURE else torch.float32)
        exec(pasted(targets, "cpu", tape), {"torch": torch, "model": model})
        return model

    cast = job.cast
    real = job.but(model=patched, form=AUTOCAST if job.form == AUTOCAST else "as it is",
                   loss=lambda m, _: job.loss(m, cast)).real()  # fmt: skip
    assert trial.loss == pytest.approx(real.losses[0], rel=1e-5, nan_ok=True)
    finite = all(bool(g.isfinite().all()) for g in real.gradients.values())
    assert trial.finite is finite
    if finite:
        assert far(trial.gradients, real.gradients) <= torch.finfo(job.dtype).eps


class Squared(nn.Module):
    """Lines that overflow: an op beside a module, ops alone, ops beside a module."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.exp(self.inp(x) + 12)
        h = torch.stack([h, h], 1).square().mean(1).rsqrt() * torch.cat([h])
        return self.head(h * 1e3 + 1) / 1e3


LINES = {
    "h = torch.exp(self.inp(x) + 12)": "# FILE:N: call .float()",
    "h = torch.stack([h, h], 1).square().mean(1).rsqrt() * torch.cat([h])": "+ with torch.autocast",
    "return self.head(h * 1e3 + 1) / 1e3": "# FILE:N: call .float()",
}


def line_of(model: type[nn.Module], text: str) -> str:
    source, start = inspect.getsourcelines(model)
    number = next(i for i, line in enumerate(source) if line.strip() == text)
    return f"line:{Path(__file__)}:{start + number}"


@pytest.mark.parametrize("text", LINES)
def test_a_line_that_calls_no_module_is_put_into_a_block(text: str) -> None:
    (tape,) = Job(Squared, classified).tapes()
    place = line_of(Squared, text)
    file, number = place.removeprefix("line:").rsplit(":", 1)
    change = pasted((place,), "cpu", tape)
    assert LINES[text].replace("FILE", file).replace("N:", f"{number}:", 1) in change
    kept = run_trial(tape, policy_of((place,)))
    assert kept.loss != run_trial(tape, policy_of(())).loss  # it covers something


@pytest.mark.parametrize("form", FORMS)
def test_the_block_does_what_the_trial_did(form: str) -> None:
    job = Job(Squared, classified, form, torch.bfloat16)
    (tape,) = job.tapes()
    text = list(LINES)[1]
    place = line_of(Squared, text)
    head, edit, *_ = pasted((place,), "cpu", tape).split("\n# ")
    code = "\n".join(x[2:] for x in head.splitlines() if x.startswith("+"))
    block = "\n".join(f"    {x[2:]}" for x in edit.splitlines() if x.startswith("+ "))
    names: dict[str, Any] = {"torch": torch}
    exec(f"{code}\ndef line(h):\n{block}\n    return h", names)

    class Pasted(Squared):
        def forward(self, x: Tensor) -> Tensor:
            h = names["line"](torch.exp(self.inp(x) + 12)).to(self.head.weight.dtype)
            return self.head(h * 1e3 + 1) / 1e3

    trial, real = run_trial(tape, policy_of((place,))), job.but(model=Pasted).real()
    assert trial.loss == pytest.approx(real.losses[0], rel=2e-3)


def test_other_units_are_comments() -> None:
    text = pasted(("line:train.py:12", "function:train.py:loss"), "cuda")
    assert text.splitlines() == [
        "# train.py:12: call .float() on its inputs, inside torch.autocast('cuda', enabled=False)",
        "# train.py:loss: put @fp16doctor.keep_fp32 on the line above its def (import fp16doctor), "
        "or call .float() on its inputs, inside torch.autocast('cuda', "
        "enabled=False)",
    ]
    compile(pasted(("module:a", "line:train.py:12"), "cpu"), "paste", "exec")
