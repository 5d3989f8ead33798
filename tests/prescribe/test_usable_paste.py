"""What is printed to paste for a keep-list runs on the script, or says which lines it needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rotary
import torch
from curing import AUTOCAST, PURE, Job, far
from deep import Deep, classified
from making import event, observed, plain, trace
from rotary import Attention, Cast, Fused
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.line_casts import line_casts, places
from fp16doctor.prescribe.paste import pasted
from fp16doctor.prescribe.paste_forms import FP16DOCTOR, FSDP, forms_of
from fp16doctor.prescribe.ranking import rank
from fp16doctor.prescribe.remedies.keep_list import keep_remedy, propose
from fp16doctor.replay.bare_products import bare_products, leaving
from fp16doctor.replay.trial import run_trial
from fp16doctor.schema.policy import KeepRule, PrecisionPolicy
from fp16doctor.schema.prescription import Prescription, Remedy, RemedyKind, Verdict
from fp16doctor.schema.tape import Tape

ROTARY = (KeepRule("module:rotary"),)
PRODUCT = "return self.head(att @ self.value(x))"


def loss_of(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    torch.manual_seed(1)
    x, y = torch.randn(2, 6, 8), torch.randint(3, (12,))
    return F.cross_entropy(model(cast(x)).float().flatten(0, 1), y)


def job_of(model: Callable[[], nn.Module] = Attention, form: str = PURE) -> Job:
    return Job(model, loss_of, form, torch.bfloat16)


def tape_of(model: Callable[[], nn.Module] = Attention, form: str = PURE) -> Tape:
    (tape,) = job_of(model, form).tapes()
    return tape


def lines_of(tape: Tape, *rules: KeepRule) -> list[str | None]:
    return [s.source.text for s in bare_products(tape, rules) if s.source is not None]


def run_pasted(code: str, model: Callable[[], nn.Module] = Attention) -> Any:
    """Paste the code behind the model of a copy of the script, and train."""

    def patched() -> nn.Module:
        made = model().to(torch.bfloat16)
        exec(code, {"torch": torch, "model": made})
        return made

    job = job_of()
    return job.but(model=patched, form="as it is", loss=lambda m, _: loss_of(m, job.cast)).real()


# -- found on the tape -----------------------------------------------------------------------------


def test_the_product_that_torch_refuses_is_found() -> None:
    """The scores are fp32 on both sides, and run; their product with the values does not."""
    assert lines_of(tape_of(), *ROTARY) == [PRODUCT]
    with pytest.raises(RuntimeError, match=r"dtype|scalar type"):
        run_pasted(pasted(("module:rotary",), "cpu"))


def test_fused_attention_is_one() -> None:
    (line,) = lines_of(tape_of(Fused), *ROTARY)
    assert line is not None
    assert "scaled_dot_product_attention" in line


@pytest.mark.parametrize("name", ["query", "value", "head", "rotary"])
def test_found_is_what_raises(name: str) -> None:
    """Every module of the model in turn: the tape says whether plain torch takes it."""
    found = bare_products(tape_of(), (KeepRule(f"module:{name}"),))
    code = pasted((f"module:{name}",), "cpu")
    if found:
        with pytest.raises(RuntimeError, match=r"dtype|scalar type"):
            run_pasted(code)
    else:
        run_pasted(code)


@pytest.mark.parametrize("form", [AUTOCAST, PURE])
def test_modules_cast_their_own_inputs(form: str) -> None:
    (tape,) = Job(lambda: Deep(1, 1, 1), classified, form).tapes()
    assert bare_products(tape, (KeepRule("module:blocks.1"),)) == ()


def test_autocast_casts_by_itself() -> None:
    assert bare_products(tape_of(form=AUTOCAST), ROTARY) == ()


def test_a_line_gives_no_module_a_hook() -> None:
    """Kept line or op: what follows it casts nothing, a Linear neither."""

    class Lines(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.exp(self.inp(x))
            return self.head(h)

    tape = tape_of(Lines)
    assert lines_of(tape, KeepRule("op:aten.exp")) == ["return self.head(h)"]
    assert lines_of(tape, KeepRule("op:aten.exp"), KeepRule("module:inp")) == []


def test_without_a_list_there_is_none() -> None:
    assert bare_products(tape_of(), ()) == ()


# -- cast back on leaving --------------------------------------------------------------------------


def test_the_pasted_casts_do_what_the_trial_did() -> None:
    tape = tape_of()
    assert leaving(tape, ROTARY) == {"bfloat16"}
    trial = run_trial(tape, PrecisionPolicy("keep-list", keep=ROTARY, casts_back=True))
    plain_torch = run_pasted(pasted(("module:rotary",), "cpu", tape, "bfloat16"))
    remedy = Remedy(RemedyKind.FP32_KEEP, "", target=("module:rotary",), value="bfloat16")
    short = run_pasted(forms_of(remedy)[FP16DOCTOR])
    assert "outputs=torch.bfloat16)  # before" in forms_of(remedy)[FSDP]
    for real in (plain_torch, short):
        assert trial.loss == pytest.approx(real.losses[0], rel=1e-5)
        assert far(trial.gradients, real.gradients) <= torch.finfo(torch.bfloat16).eps
    wide = run_trial(tape, PrecisionPolicy("keep-list", keep=ROTARY))
    as_run = run_trial(tape, PrecisionPolicy("as_run"))
    assert len({wide.loss, trial.loss, as_run.loss}) == 3  # each does something of its own


def test_backward_inside_gets_what_was_inside() -> None:
    """exp's own backward multiplies by its result: the fp32 one, not the one that left."""

    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return torch.exp(self.inp(x))

    def model() -> nn.Module:
        return nn.Sequential(Kept(), nn.Linear(8, 3))

    policy = PrecisionPolicy("keep-list", keep=(KeepRule("module:0"),), casts_back=True)
    trial = run_trial(tape_of(model), policy)
    real = run_pasted(pasted(("module:0",), "cpu", outputs="bfloat16"), model)
    assert trial.loss == pytest.approx(real.losses[0], rel=1e-6)
    assert far(trial.gradients, real.gradients) <= 1e-5


def proposed(tape: Tape, module: str) -> list[Prescription]:
    born = event(module_path=module)
    findings = diagnose(observed(trace(born), steps=plain(1)))[0]
    return list(propose(Case(findings, Bench((tape,), 60))))


class Inner(nn.Module):
    """Overflows inside; what it returns fits into fp16 or, times ``out``, does not."""

    def __init__(self, out: float) -> None:
        super().__init__()
        self.out = out

    def forward(self, x: Tensor) -> Tensor:
        return ((x + 300) * 300).mean(-1, keepdim=True) * self.out + x


class Product(nn.Module):
    def __init__(self, out: float) -> None:
        super().__init__()
        self.inner, self.inp, self.value = Inner(out), nn.Linear(8, 8), nn.Linear(8, 8)
        self.narrow = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        a = self.inner(self.inp(x)) * 1e-5
        return self.narrow(torch.matmul(a, self.value(x).transpose(-1, -2)))


def cure_of(out: float) -> Prescription:
    (tape,) = Job(lambda: Product(out), loss_of, PURE).tapes()
    cures = proposed(tape, "inner")
    return next(c for c in cures if c.remedy.target == ("module:inner",))


def test_the_results_are_cast_back_where_that_is_verified() -> None:
    cure = cure_of(1e-4)
    assert cure.verification.verdict is Verdict.VERIFIED
    assert cure.remedy.value == "float16"
    assert cure.remedy.casts == ()
    assert "its results in fp16" in cure.remedy.title
    assert "return forward(x.float()).to(torch.float16)" in cure.remedy.change


def test_the_lines_are_named_where_it_overflows_again() -> None:
    cure = cure_of(1.0)
    assert cure.verification.verdict is Verdict.VERIFIED
    assert cure.remedy.value is None
    (told,) = cure.remedy.casts
    assert "matmul" in told
    assert told.endswith("gets fp32 and fp16: cast what enters it in fp32 with .to(torch.float16)")
    assert f"# {told}" in cure.remedy.change.splitlines()
    assert f"# {told}" in forms_of(cure.remedy)[FP16DOCTOR].splitlines()
    assert "needs that cast by hand at " in cure.verification.reason


# -- by hand ---------------------------------------------------------------------------------------


def test_the_line_with_the_cast_it_asks_for_runs() -> None:
    tape = tape_of()
    code = pasted(("module:rotary",), "cpu", tape)
    number = next(
        i for i, x in enumerate(inspect.getsource(rotary).splitlines(), 1) if x.strip() == PRODUCT
    )
    last = code.splitlines()[-1]
    assert last.startswith("# ")
    assert f"rotary.py:{number}: `bmm` of `{PRODUCT}` gets fp32 and bf16" in last
    trial = run_trial(tape, PrecisionPolicy("keep-list", keep=ROTARY))
    assert run_pasted(code, Cast).losses[0] == pytest.approx(trial.loss, rel=0.02)


def test_a_proof_names_a_few_lines() -> None:
    assert places(()) == ""
    text = places(tuple(f"a.py:{i}: `x @ y` gets" for i in range(6)))
    assert text.endswith("at a.py:0, a.py:1, a.py:2, a.py:3 and 2 more")
    assert line_casts(tape_of(), ROTARY)[0].count("torch.bfloat16") == 1


def test_of_two_lists_the_one_without_casts_is_preferred() -> None:
    tape = tape_of()
    findings = diagnose(observed(trace(event(module_path="rotary")), steps=plain(1)))[0]
    case = Case(findings, Bench((tape,), 60))
    by_hand, back = keep_remedy(case, ROTARY), keep_remedy(case, ROTARY, "bfloat16")
    ranks = [rank(case.prescribe(r, (0,), None)) for r in (by_hand, back)]
    assert ranks[1] < ranks[0]


# -- lines -----------------------------------------------------------------------------------------


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        h = (h * h).mean(-1, keepdim=True) * h
        return self.head(h)


@pytest.mark.parametrize("form", [AUTOCAST, PURE])
def test_the_edit_of_a_line_is_one_diff(form: str) -> None:
    """Nothing in it is Python beside the diff; modules on the list are code to add as well."""
    tape = tape_of(Mean, form)
    start = inspect.getsourcelines(Mean)[1]
    place = f"line:{Path(__file__)}:{start + 7}"
    for targets in ((place,), ("module:inp", place)):
        lines = pasted(targets, "cpu", tape).splitlines()
        assert {x[0] for x in lines} == {"#", "+", "-"}
        compile(
            "\n".join(x[2:] for x in lines[1:] if x[0] == "+").partition("\nwith ")[0], "", "exec"
        )


@pytest.mark.parametrize("kind", ["line", "op"])
def test_the_edited_line_casts_its_value_back_as_the_trial_did(kind: str) -> None:
    place = f"line:{Path(__file__)}:{inspect.getsourcelines(Mean)[1] + 7}"
    target = place if kind == "line" else "op:aten.mean"
    tape = tape_of(Mean)
    rules = (KeepRule(target),)
    assert lines_of(tape, *rules) == ["return self.head(h)"]
    text = pasted((target,), "cpu", tape, "bfloat16")
    added = [x[2:] for x in text.splitlines() if x[0] == "+"]
    first = next(i for i, x in enumerate(added) if x.startswith(("with ", "h = ")))
    names: dict[str, Any] = {"torch": torch}
    edit = "\n".join(f"    {x}" for x in added[first:])
    exec("\n".join(added[:first]) + f"\ndef line(h):\n{edit}\n    return h", names)

    class Pasted(Mean):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(names["line"](self.inp(x)))

    trial = run_trial(tape, PrecisionPolicy("keep-list", keep=rules, casts_back=True))
    real = run_pasted("", Pasted)
    assert trial.loss == pytest.approx(real.losses[0], rel=1e-5)
    assert far(trial.gradients, real.gradients) <= torch.finfo(torch.bfloat16).eps


def test_a_line_that_cannot_be_edited_says_what_to_cast() -> None:
    place = f"line:{Path(__file__)}:{inspect.getsourcelines(Mean)[1] + 6}"
    text = pasted((place,), "cpu", None, "bfloat16")
    assert text.endswith("; .to(torch.bfloat16) on what it hands on")
