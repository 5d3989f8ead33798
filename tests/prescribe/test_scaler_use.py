"""A GradScaler used otherwise, tried on the tape, gives the update that the mended script makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from curing import recorded
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.intended import NO_SCALE, verify
from fp16doctor.prescribe.plan import plan
from fp16doctor.prescribe.remedies.scaler_refused import propose as refused
from fp16doctor.prescribe.remedies.scaler_use import propose
from fp16doctor.replay.scaler_use import (
    divided_once,
    injection_scaled,
    unscaled_by_step,
    unscaled_first,
    unscaled_once,
    with_scale,
    without_scaler,
)
from fp16doctor.replay.scales import scale_of
from fp16doctor.replay.trial import run_to_update
from fp16doctor.schema.finding import SCALER_RAISED, Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.policy import AS_RUN, FP32
from fp16doctor.schema.prescription import Prescription, RemedyKind, Verdict
from fp16doctor.schema.tape import Tape

SCALE = 2.0**10


class Attach(torch.autograd.Function):
    """Lets a second loss ride along in backward; a right script multiplies it by ``factor``."""

    factor = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor, aux: Tensor) -> Tensor:
        ctx.save_for_backward(aux)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (aux,) = ctx.saved_tensors
        ones = torch.ones_like(aux)
        return grads[0], ones if Attach.factor == 1 else ones * Attach.factor


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 4)
        self.rides = False

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        if self.rides:
            h = Attach.apply(h, h.float().square().mean())
        out: Tensor = self.head(h)
        return out


@dataclass
class Training:
    """What a script sets up; ``update`` is its step behind the forward."""

    update: Callable[[Training, Callable[[], Tensor]], None]
    rides: bool = False
    init: float = SCALE
    steps: int = 1

    def run(self) -> dict[str, Tensor]:
        """Train for real and return the parameters."""
        torch.manual_seed(0)
        self.net = Net()
        self.net.rides = self.rides
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=self.init)
        for _ in range(self.steps):
            self.optimizer.zero_grad()
            self.update(self, self.loss)
        return {n: p.detach().clone() for n, p in self.net.named_parameters()}

    def loss(self) -> Tensor:
        x, y = torch.randn(8, 6), torch.randint(0, 4, (8,))
        with torch.autocast("cpu", torch.float16):
            return F.cross_entropy(self.net(x).float(), y)

    def tape(self) -> Tape:
        return recorded(self.run)[0]


def clipped_scaled(t: Training, loss: Callable[[], Tensor]) -> None:
    t.scaler.scale(loss()).backward()
    clip_grad_norm_(t.net.parameters(), 0.1)
    t.scaler.step(t.optimizer)
    t.scaler.update()


def clipped(t: Training, loss: Callable[[], Tensor]) -> None:
    t.scaler.scale(loss()).backward()
    t.scaler.unscale_(t.optimizer)
    clip_grad_norm_(t.net.parameters(), 0.1)
    t.scaler.step(t.optimizer)
    t.scaler.update()


def stepped_scaled(t: Training, loss: Callable[[], Tensor]) -> None:
    t.scaler.scale(loss()).backward()
    t.optimizer.step()


def stepped(t: Training, loss: Callable[[], Tensor]) -> None:
    t.scaler.scale(loss()).backward()
    t.scaler.step(t.optimizer)
    t.scaler.update()


def divided_by_hand(t: Training, loss: Callable[[], Tensor]) -> None:
    t.scaler.scale(loss()).backward()
    for p in t.net.parameters():
        p.grad /= SCALE  # type: ignore[operator]
    t.scaler.step(t.optimizer)
    t.scaler.update()


def unscaled_each(t: Training, loss: Callable[[], Tensor]) -> None:
    for _ in range(2):
        t.scaler.scale(loss()).backward()
        t.scaler.unscale_(t.optimizer)
        t.scaler._per_optimizer_states.clear()  # as an update in each micro-batch does
    t.optimizer.step()


def accumulated(t: Training, loss: Callable[[], Tensor]) -> None:
    for _ in range(2):
        t.scaler.scale(loss()).backward()
    t.scaler.step(t.optimizer)
    t.scaler.update()


@pytest.fixture(autouse=True)
def _no_factor() -> Iterator[None]:
    yield
    Attach.factor = 1.0


def site(op: str, tape: Tape, phase: Phase) -> OpSite:
    """Return the last place of an op in a phase, the seed of backward apart."""
    seeds = {m.index for m in tape.losses}
    found = [c.site for c in tape.ops if c.op == op and c.site.phase is phase]
    return [s for s in found if s.index not in seeds][-1]


def divided(tape: Tape) -> Tape | None:
    return divided_once(tape, site("aten.div_.Tensor", tape, Phase.OPTIMIZER))


def injected(tape: Tape) -> Tape | None:
    return injection_scaled(tape, site("aten.ones_like.default", tape, Phase.BACKWARD))


@pytest.mark.parametrize(
    ("wrong", "right", "edit", "rides"),
    [
        (clipped_scaled, clipped, unscaled_first, False),
        (stepped_scaled, stepped, unscaled_by_step, False),
        (divided_by_hand, stepped, divided, False),
        (unscaled_each, accumulated, unscaled_once, False),
        (stepped, stepped, injected, True),
    ],
)
def test_an_edited_step_updates_as_the_mended_script(
    wrong: Any, right: Any, edit: Callable[[Tape], Tape | None], rides: bool
) -> None:
    tape = recorded(Training(wrong, rides).run)[0]
    start = Training(lambda t, loss: None).run()
    Attach.factor = SCALE if rides else 1.0
    mended = Training(right, rides).run()
    edited = edit(tape)
    assert edited is not None
    got, as_run = (run_to_update(t, AS_RUN).updates for t in (edited, tape))
    for name, end in mended.items():
        wanted = end - start[name]
        assert torch.allclose(got[name], wanted, rtol=2e-3, atol=1e-6), name
    assert any(not torch.allclose(as_run[n], mended[n] - start[n], rtol=0.05) for n in mended)


@pytest.mark.parametrize("step", [0, 1])  # the first makes the scale's tensor, the second has it
def test_another_scale(step: int) -> None:
    tape = recorded(Training(stepped, steps=2).run)[step]
    other = with_scale(tape, 4.0)
    assert other is not None
    assert (scale_of(tape), scale_of(other)) == (SCALE, 4.0)


def test_without_a_scaler_is_the_plain_script() -> None:
    def plain(t: Training, loss: Callable[[], Tensor]) -> None:
        loss().backward()
        clip_grad_norm_(t.net.parameters(), 0.1)
        t.optimizer.step()

    tape = Training(clipped_scaled).tape()
    bare = without_scaler(tape)
    assert bare is not None
    start, mended = Training(lambda t, loss: None).run(), Training(plain).run()
    got = run_to_update(bare, AS_RUN).updates
    for name, end in mended.items():
        assert torch.allclose(got[name], end - start[name], rtol=1e-3, atol=1e-7), name


def wrong_use(code: str, tape: Tape, where: OpSite | None = None) -> Finding:
    where = where or tape.ops[-1].site
    return Finding(code, "x", Severity.ERROR, Fault.MISUSE, "w", "c", where, advice="do it right")


def proposed(finding: Finding, *tapes: Tape) -> list[Prescription]:
    return list(propose(Case((finding,), Bench(tapes, 60))))


def test_every_cure_is_held_against_fp32_without_a_scale() -> None:
    tape = Training(clipped_scaled).tape()
    cures = proposed(wrong_use("FD402", tape), tape)
    assert [p.remedy.kind for p in cures] == [
        RemedyKind.CODE_FIX,
        RemedyKind.DTYPE,
        RemedyKind.DTYPE,
    ]
    assert {p.verification.verdict for p in cures} == {Verdict.VERIFIED}
    proof = cures[0].verification
    assert proof.before["realised fraction"] < 0.01
    assert proof.after["realised fraction"] == pytest.approx(1, abs=0.01)
    assert "without a loss scale" in cures[1].remedy.title
    assert "enabled=False" in cures[1].remedy.change
    _, answer = plan((wrong_use("FD402", tape),), Bench((tape,), 60))
    assert answer.prescriptions == (0,)


def test_a_use_that_changes_nothing_is_not_verified() -> None:
    """A norm far below the threshold: clipping is idle, the run as good as any cure."""

    def idle(t: Training, loss: Callable[[], Tensor]) -> None:
        t.scaler.scale(loss()).backward()
        clip_grad_norm_(t.net.parameters(), 1e9)
        t.scaler.step(t.optimizer)
        t.scaler.update()

    tape = Training(idle).tape()
    proof = proposed(wrong_use("FD402", tape), tape)[0].verification
    assert proof.verdict is Verdict.REFUTED
    assert "no better than the run itself" in proof.reason


def test_a_factor_that_python_computed_is_not_on_the_tape() -> None:
    def by_number(t: Training, loss: Callable[[], Tensor]) -> None:
        t.scaler.scale(loss()).backward()
        norm = sum(float(p.grad.square().sum()) for p in t.net.parameters()) ** 0.5  # type: ignore[union-attr]
        for p in t.net.parameters():
            p.grad.mul_(min(1.0, 0.1 / norm))  # type: ignore[union-attr]
        t.scaler.step(t.optimizer)
        t.scaler.update()

    tape = Training(by_number).tape()
    proof = proposed(wrong_use("FD402", tape), tape)[0].verification
    assert proof.verdict is Verdict.NOT_VERIFIED
    assert "cannot be expressed" in proof.reason


def test_the_scale_settles_before_a_use_is_judged() -> None:
    tape = Training(stepped_scaled, init=2.0**30).tape()
    assert not run_to_update(tape, AS_RUN).finite
    proof = proposed(wrong_use("FD403", tape), tape)[0].verification
    assert proof.verdict is Verdict.VERIFIED
    assert proof.before["non-finite elements"] > 0


def test_a_scale_by_hand_is_no_scaler() -> None:
    def by_hand(t: Training, loss: Callable[[], Tensor]) -> None:
        (loss() * SCALE).backward()
        t.optimizer.step()

    tape = Training(by_hand).tape()
    proof = verify(Bench((tape,), 60), without_scaler, FP32)
    assert proof.verdict is Verdict.NOT_VERIFIED
    assert proof.reason == NO_SCALE


def test_later_steps_from_spoilt_weights_do_not_count() -> None:
    def spoils(t: Training, loss: Callable[[], Tensor]) -> None:
        stepped_scaled(t, loss)
        with torch.no_grad():
            t.net.head.weight.fill_(1e6)  # beyond fp16

    tapes = recorded(Training(spoils, steps=2).run)
    proof = proposed(wrong_use("FD403", tapes[0]), *tapes)[0].verification
    assert proof.verdict is Verdict.VERIFIED


def test_a_skipped_step_says_nothing() -> None:
    tape = Training(clipped_scaled, init=2.0**40).tape()
    proof = proposed(wrong_use("FD402", tape), tape)[0].verification
    assert proof.verdict is Verdict.NOT_VERIFIED
    assert "let the optimizer step" in proof.reason


def raised_by_scaler(*evidence: Evidence) -> Finding:
    return Finding(
        "FD901", "script-raised", Severity.ERROR, Fault.MISUSE, "w", "c", None, evidence=evidence
    )


SCALER_SAID_NO = Evidence(SCALER_RAISED, 1.0, "recorded")


def test_a_check_of_the_scaler_is_not_made_without_one() -> None:
    tape = Training(stepped).tape()
    cures = list(refused(Case((raised_by_scaler(SCALER_SAID_NO),), Bench((tape,), 60))))
    assert [p.remedy.value for p in cures] == ["bf16", "fp32"]
    assert {p.verification.verdict for p in cures} == {Verdict.VERIFIED}
    assert "what follows it never ran" in cures[0].verification.reason
    assert 0 < cures[0].verification.after["gradient error"] < 0.1
    _, answer = plan((raised_by_scaler(SCALER_SAID_NO),), Bench((tape,), 60))
    assert answer.sentence == "train in bf16 without a loss scale"


def test_a_step_that_needs_no_scaler_but_is_not_finite_is_refuted() -> None:
    def beyond(t: Training, loss: Callable[[], Tensor]) -> None:
        t.scaler.scale(loss() * float("inf")).backward()
        t.scaler.step(t.optimizer)

    cures = list(
        refused(Case((raised_by_scaler(SCALER_SAID_NO),), Bench((Training(beyond).tape(),), 60)))
    )
    assert {p.verification.verdict for p in cures} == {Verdict.REFUTED}


def test_other_exceptions_are_not_the_scalers() -> None:
    tape = Training(stepped).tape()
    assert list(refused(Case((raised_by_scaler(),), Bench((tape,), 60)))) == []
    assert list(refused(Case((raised_by_scaler(SCALER_SAID_NO),), None))) == []


def divided_behind_unscale(t: Training, loss: Callable[[], Tensor]) -> None:
    t.scaler.scale(loss()).backward()
    t.scaler.unscale_(t.optimizer)
    for p in t.net.parameters():
        p.grad.mul_(1 / t.scaler.get_scale())  # type: ignore[union-attr]
    t.scaler.step(t.optimizer)
    t.scaler.update()


@pytest.mark.parametrize("wrong", [divided_by_hand, divided_behind_unscale])
def test_a_number_read_off_the_scaler_is_no_part_of_the_intended_update(wrong: Any) -> None:
    tape = Training(wrong).tape()
    name = "aten.div_.Tensor" if wrong is divided_by_hand else "aten.mul_.Tensor"
    where = site(name, tape, Phase.OPTIMIZER)
    cures = proposed(wrong_use("FD406", tape, where), tape)
    assert {p.verification.verdict for p in cures} == {Verdict.VERIFIED}
    assert cures[0].verification.before["realised fraction"] == pytest.approx(1 / SCALE, rel=0.01)


def test_a_number_that_is_logged_is_no_reason_to_try_nothing() -> None:
    def logs(t: Training, loss: Callable[[], Tensor]) -> None:
        value = loss()
        t.scaler.scale(value).backward()
        float(value.detach())
        clip_grad_norm_(t.net.parameters(), 0.1)
        t.scaler.step(t.optimizer)
        t.scaler.update()

    tape = Training(logs).tape()
    proof = proposed(wrong_use("FD402", tape), tape)[0].verification
    assert proof.verdict is Verdict.VERIFIED


def test_no_format_is_a_cure_of_what_the_use_led_to() -> None:
    tape = Training(stepped_scaled).tape()
    finding = replace(wrong_use("FD403", tape), subsumes=("FD101",))
    found, _ = plan((finding,), Bench((tape,), 60))
    titles = [p.remedy.title for p in found if p.remedy.kind is RemedyKind.DTYPE]
    assert titles
    assert all(t.endswith("without a loss scale") for t in titles)


def dropped(t: Training, loss: Callable[[], Tensor]) -> None:
    value = loss()
    t.scaler.scale(value)
    value.backward()
    t.scaler.step(t.optimizer)
    t.scaler.update()


def half_dropped(t: Training, loss: Callable[[], Tensor]) -> None:
    t.scaler.scale(loss()).backward()
    loss().backward()
    t.scaler.step(t.optimizer)
    t.scaler.update()


@pytest.mark.parametrize("wrong", [dropped, half_dropped])
def test_a_backward_without_the_scale_begins_with_it(wrong: Any) -> None:
    tape = Training(wrong).tape()
    cures = proposed(wrong_use("FD410", tape), tape)
    assert {p.verification.verdict for p in cures} == {Verdict.VERIFIED}
    assert cures[0].verification.after["realised fraction"] == pytest.approx(1, abs=0.02)


def penalised(t: Training, loss: Callable[[], Tensor]) -> None:
    value = loss()
    weight = t.net.body.weight
    (grad,) = torch.autograd.grad(t.scaler.scale(value), weight, create_graph=True)
    t.scaler.scale(value + 1e-3 * grad.square().sum()).backward()
    t.scaler.step(t.optimizer)
    t.scaler.update()


def test_a_penalty_is_tried_on_gradients_without_the_scale() -> None:
    tape = Training(penalised, init=64.0).tape()
    cures = proposed(wrong_use("FD411", tape), tape)
    assert {p.verification.verdict for p in cures} == {Verdict.VERIFIED}
    assert cures[0].verification.before["largest update error"] > 0.5
    assert cures[0].verification.after["largest update error"] < 0.02


def test_a_cure_of_something_else_must_make_the_intended_update() -> None:
    """The overflow is cured in bf16; the updates stay as large as the scale."""

    def overflows(t: Training, loss: Callable[[], Tensor]) -> None:
        value = loss()
        with torch.autocast("cpu", torch.float16):
            large = t.net(torch.ones(4, 6)) * 3e4
        t.scaler.scale(value + 1e-9 * large.square().mean().float()).backward()
        t.optimizer.step()

    tape = Training(overflows).tape()
    born = next(c.site for c in tape.ops if c.nonfinite)
    half = Evidence("amax", 1e9, "recorded", format="fp16")
    overflow = Finding(
        "FD101", "x", Severity.ERROR, Fault.OVERFLOW, "w", "c", born, evidence=(half,)
    )
    found, answer = plan((overflow, wrong_use("FD403", tape)), Bench((tape,), 60))
    kept = [p for p in found if p.treats == (0,) and p.remedy.kind is RemedyKind.DTYPE]
    assert kept
    assert {p.verification.verdict for p in kept} == {Verdict.REFUTED}
    assert "used as it is" in kept[0].verification.reason
    assert found[answer.prescriptions[0]].remedy.title.endswith("without a loss scale")
