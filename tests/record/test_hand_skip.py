"""A step that the script leaves out because its gradients are not finite is an attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn
from watched import Record

Check = Callable[[Iterable[Tensor]], bool]


def _is_finite(gradients: Iterable[Tensor]) -> bool:
    return all(bool(torch.isfinite(g).all()) for g in gradients)


def _is_number(gradients: Iterable[Tensor]) -> bool:
    return not any(bool(torch.isnan(g).any() | torch.isinf(g).any()) for g in gradients)


def _train(check: Check | None, *, zero_first: bool, scale: float = 2.0**18) -> list[float]:
    torch.manual_seed(0)
    model, losses = nn.Linear(3, 1), []
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(6):
        if zero_first:
            optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).half().float().sum()
        if not zero_first and (check is not None or step % 2 == 0):
            optimizer.zero_grad()
        (loss * scale).backward()
        losses.append(float(loss.detach()))
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if check is None and step % 2 == 0:
            continue
        if check is not None and not check(gradients):
            scale /= 2
            continue
        for g in gradients:
            g.div_(scale)
        optimizer.step()
    return losses


@pytest.mark.parametrize("check", [_is_finite, _is_number])
@pytest.mark.parametrize("zero_first", [True, False])
def test_a_pass_that_is_left_out_is_a_step_of_its_own(
    record: Record, check: Check, zero_first: bool
) -> None:
    seen = record(lambda: {"losses": _train(check, zero_first=zero_first)})
    # 2**18, 2**17 and 2**16 pass 65504 in fp16; 2**15 does not
    assert [s.skipped for s in seen.steps] == [True, True, True, False, False, False]
    assert [s.step for s in seen.steps] == [0, 1, 2, 3, 4, 5]
    assert all(s.found_inf is None for s in seen.steps)


def test_gradients_that_are_kept_and_not_asked_about_are_a_part_of_a_batch(record: Record) -> None:
    seen = record(lambda: {"losses": _train(None, zero_first=False)})
    assert [s.skipped for s in seen.steps] == [False, False, False]


def test_finite_gradients_that_are_asked_about_stay_in_one_step(record: Record) -> None:
    def training() -> dict[str, list[float]]:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for micro in range(4):
            model(torch.ones(4, 3)).sum().backward()
            assert _is_finite(p.grad for p in model.parameters() if p.grad is not None)
            if micro % 2:
                optimizer.step()
                optimizer.zero_grad()
        return {"losses": []}

    assert len(record(training).steps) == 2
