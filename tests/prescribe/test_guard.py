"""Where no format helps, the user's own line with a guard is tried before it is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from curing import AUTOCAST, Job
from making import observed, plain
from replaying import watch
from torch import Tensor, nn

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.plan import plan
from fp16doctor.prescribe.shelf import MAX_BEYOND, TapeShelf, detached
from fp16doctor.replay.examine import examine
from fp16doctor.schema.finding import Fault, Finding
from fp16doctor.schema.prescription import (
    Prescription,
    Recommendation,
    RecommendationStatus,
    Verdict,
)
from fp16doctor.schema.tape import Tape

Line = Callable[[Tensor], Tensor]


def net() -> nn.Module:
    return nn.Linear(4, 6)


def tape_of(line: Line) -> Tape:
    """One step whose third row is 0."""

    def loss(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        keep = torch.ones(5, 1)
        keep[2] = 0
        return line(model(cast(torch.randn(5, 4))).float().abs() * keep).sum()

    (tape,) = Job(net, loss, AUTOCAST).tapes()
    return tape


def finding_of(tape: Tape) -> Finding:
    """The first birth of a step as the pipeline finds it."""
    found = examine(tape, with_reference=True)
    seen = observed(found, steps=plain(1))
    return next(f for f in diagnose(seen)[0] if f.name == "logic-nan")


def planned(line: Line) -> tuple[tuple[Prescription, ...], Recommendation]:
    tape = tape_of(line)
    return plan((finding_of(tape),), beyond=Bench((tape,), 60))


def told(line: Line) -> Prescription:
    found, answer = planned(line)
    assert answer.status is RecommendationStatus.NOT_PRECISION
    (place,) = answer.prescriptions
    assert answer.sentence.startswith(found[place].remedy.title) or not found[place].remedy.change
    return found[place]


def masked_mean(r: Tensor) -> Tensor:
    return (r * (r > 0)).sum(1) / (r > 0).sum(1)


def float_count(r: Tensor) -> Tensor:
    m = (r > 0).float()
    return (r * m).sum(1) / m.sum(1)


def mask_of_floats(r: Tensor) -> Tensor:
    m = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    return (r[:, :2] * m).sum(1) / m.sum(1)


def weights(r: Tensor) -> Tensor:
    w = r.detach() * 0.3
    return (r * w).sum(1) / w.sum(1)


def normed(r: Tensor) -> Tensor:
    return r / r.norm(dim=-1, keepdim=True)


def logarithm(r: Tensor) -> Tensor:
    return torch.log(r)


def distance(r: Tensor) -> Tensor:
    return r.pow(2).sum(-1).sqrt()


def angle(r: Tensor) -> Tensor:
    return torch.acos(1 - 1e-3 * r)


def attended(r: Tensor) -> Tensor:
    return r.masked_fill(r == 0, float("-inf")).softmax(-1)[:, 0] * r[:, 1]


def impossible(r: Tensor) -> Tensor:
    x = r + torch.where(r == 0, -torch.inf, 0.0)
    return torch.logsumexp(x, dim=-1).clamp(min=-9)


@pytest.mark.parametrize(
    ("line", "new"),
    [
        (masked_mean, "return (r * (r > 0)).sum(1) / (r > 0).sum(1).clamp(min=1)"),
        (float_count, "return (r * m).sum(1) / m.sum(1).clamp(min=1)"),
        (mask_of_floats, "return (r[:, :2] * m).sum(1) / m.sum(1).clamp(min=1)"),
        (weights, "return (r * w).sum(1) / w.sum(1).clamp(min=1e-12)"),
        (normed, "return r / r.norm(dim=-1, keepdim=True).clamp(min=1e-12)"),
        (logarithm, "return torch.log(r.clamp(min=1e-12))"),
        (distance, "return (r.pow(2).sum(-1) + 1e-12).sqrt()"),
        (angle, "return torch.acos((1 - 1e-3 * r).clamp(-1 + 1e-6, 1 - 1e-6))"),
        (impossible, "return torch.logsumexp(x.clamp(min=-1e30), dim=-1).clamp(min=-9)"),
        (attended,
         "return r.masked_fill(r == 0, torch.finfo(r.dtype).min).softmax(-1)[:, 0] * r[:, 1]"),
    ],
)  # fmt: skip
def test_the_line_with_its_guard_is_verified(line: Line, new: str) -> None:
    cure = told(line)
    assert cure.remedy.change.splitlines()[-1] == f"+ {new}"
    assert f"`{new}`" in cure.remedy.title
    assert cure.verification.verdict is Verdict.VERIFIED, cure.verification
    assert cure.verification.steps == (0,)
    assert cure.verification.before["non-finite elements"] > 0
    assert cure.verification.after["non-finite elements"] == 0


def test_the_findings_own_words_are_left_out_beside_it() -> None:
    found, answer = planned(masked_mean)
    assert len(found) == 1
    assert answer.sentence.endswith("no format or loss scale changes it")


def wrong_sign(r: Tensor) -> Tensor:
    h = -torch.expm1(r + 1)
    return torch.log(h[:, 0])


def test_a_clamp_is_no_cure_of_a_wrong_sign() -> None:
    cure = told(wrong_sign)
    assert cure.remedy.change == ""
    assert cure.verification.verdict is Verdict.NOT_VERIFIED
    assert "check the sign of what `log` gets, made by `h = -torch.expm1(r + 1)`" in (
        cure.remedy.title
    )
    assert "5 of the 5 elements" in cure.remedy.title


def mostly_zeros(r: Tensor) -> Tensor:
    return torch.log((r - 10).relu() + 0 * r)


def test_a_guard_whose_constant_is_most_of_the_result_is_not_told() -> None:
    cure = told(mostly_zeros)
    assert cure.remedy.change == ""
    assert "30 of the 30 elements in the kept steps lie at or beyond the edge" in cure.remedy.title
    assert cure.verification.verdict is Verdict.NOT_VERIFIED


def signed_divisor(r: Tensor) -> Tensor:
    d = r[:, 0] - 3 * r[:, 1]
    return r.sum(1) / d


def test_a_divisor_of_both_signs_is_not_clamped() -> None:
    tape = tape_of(signed_divisor)
    (cure, *_), _ = plan((finding_of(tape),), beyond=Bench((tape,), 60))
    assert cure.remedy.change == ""
    assert "some are negative" in cure.remedy.title


def test_a_guard_that_changes_sound_steps_is_refuted() -> None:
    """1e-12 under a root is nothing beside most numbers, and much beside squares of 1e-7."""

    def tiny(r: Tensor) -> Tensor:
        return (r * 1e-7).pow(2).sum(-1).sqrt() * 1e7

    def sound(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        return tiny(model(cast(torch.randn(5, 4))).float()).sum()

    sick = tape_of(tiny)
    (fine,) = Job(net, sound, AUTOCAST).tapes()
    cures, answer = plan((finding_of(sick),), Bench((fine,), 60), beyond=Bench((sick,), 60))
    assert all(p.verification.verdict is not Verdict.VERIFIED for p in cures), cures
    assert "sqrt()" not in answer.sentence


@pytest.mark.parametrize("form", [torch.float32, torch.bfloat16])
def test_a_birth_in_fp32_is_guarded_unless_16_bits_led_to_it(form: torch.dtype) -> None:
    """1 within the rounding of fp32, or of bf16: then fp32 is the cure, and the guard is not."""

    def loss(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        h = model(torch.randn(5, 4)).float().abs()
        gap = torch.ones(5, 1)
        gap[2] = 1e-9 if form is torch.float32 else 1e-4
        share = (h / (h + gap)).to(form)
        return torch.acos(share.float()).sum()

    (tape,) = Job(net, loss, dtype=torch.float32).tapes()
    found = examine(tape, with_reference=True)
    findings = diagnose(observed(found, steps=plain(1)))[0]
    born = next(f for f in findings if f.fault is Fault.NAN_BIRTH)
    cures, _ = plan((born,), Bench((tape,), 60))
    told = [c.verification.verdict for c in cures if ".clamp(" in c.remedy.change]
    assert born.code == "FD111"
    assert told == ([Verdict.VERIFIED] if form is torch.float32 else []), cures


def test_without_a_kept_step_it_is_told_in_words() -> None:
    cures, answer = plan((finding_of(tape_of(masked_mean)),))
    assert [p.remedy.change for p in cures] == [""]
    assert answer.sentence.startswith("not a matter of precision")


def test_the_shelf_keeps_what_no_format_cures_apart() -> None:
    shelf = TapeShelf()

    def look(tape: Tape) -> None:
        if tape.backward_ends:
            shelf.offer(detached(tape), examine(tape, with_reference=True))

    def loss(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        r = model(cast(torch.randn(5, 4))).float()
        return masked_mean(r.relu() * 0).sum()

    watch(Job(net, loss, AUTOCAST, steps=4, options={"lr": 0.0}).real, look=look)
    assert shelf.tapes() == ()
    assert 1 <= len(shelf.beyond_formats()) <= MAX_BEYOND
