"""From a bundle to the ops that show its fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from bundling import bundles_of, one_linear
from torch import Tensor, nn

from fp16doctor.errors import BundleError
from fp16doctor.pipeline.repro import excerpt_of
from fp16doctor.schema.bundle import Bundle
from fp16doctor.schema.excerpt import Excerpt, Shows
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import OpSite

HALF = torch.float16


def step_of(loss_of: Callable[[Tensor], Tensor], dtype: torch.dtype = HALF) -> Bundle:
    def train() -> None:
        model = nn.Linear(3, 3).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_of(model(torch.ones(4, 3, dtype=dtype))).backward()
        optimizer.step()

    return bundles_of(train)[0]


def site(bundle: Bundle, op: str) -> OpSite:
    return next(c.site for c in bundle.tape.ops if c.op.split(".")[1] == op)


def with_finding(bundle: Bundle, fault: Fault, at: OpSite, cause: OpSite | None = None) -> Bundle:
    finding = Finding("FD000", "x", Severity.ERROR, fault, "what", "why", at, cause)
    return replace(bundle, origin=replace(bundle.origin, finding=finding))


def ops(excerpt: Excerpt) -> list[str]:
    return [line.op.split(".")[1] for line in excerpt.lines]


def test_the_findings_op_comes_first() -> None:
    """Two ops overflow; the finding names the second."""
    bundle = step_of(lambda y: ((y + 12).exp() * (y + 300).pow(2)).float().sum())
    second = with_finding(bundle, Fault.OVERFLOW, site(bundle, "pow"))
    assert ops(excerpt_of(bundle)) == ["exp"]
    assert ops(excerpt_of(second))[-1] == "pow"


def test_a_findings_cause_is_taken_in() -> None:
    def loss_of(y: Tensor) -> Tensor:
        return (y + torch.tensor([0.0, 0.0, 30.0], dtype=HALF)).softmax(-1).log().float().sum()

    bundle = step_of(loss_of)
    at, cause = site(bundle, "log"), site(bundle, "_softmax")
    found = excerpt_of(with_finding(bundle, Fault.NAN_BIRTH, at, cause))
    assert (ops(found), found.shows) == (["_softmax", "log"], Shows.NONFINITE)


def test_what_rounding_did_is_found_without_a_finding() -> None:
    def loss_of(y: Tensor) -> Tensor:
        return (y.float() * torch.arange(300).to(torch.bfloat16).float().mean()).sum()

    found = excerpt_of(step_of(loss_of))
    assert (ops(found), found.shows) == (["_to_copy"], Shows.INTEGER)


def test_a_site_of_another_tape_is_not_followed() -> None:
    bundle = step_of(lambda y: (y + 12).exp().float().sum())
    elsewhere = replace(site(bundle, "exp"), index=0)
    assert ops(excerpt_of(with_finding(bundle, Fault.OVERFLOW, elsewhere))) == ["exp"]


def test_a_step_without_a_fault() -> None:
    (bundle,) = bundles_of(one_linear)
    with pytest.raises(BundleError, match=r"the step shows none.*\[no-fault-shown\]"):
        excerpt_of(bundle)
    named = with_finding(bundle, Fault.MISUSE, site(bundle, "addmm"))
    with pytest.raises(BundleError, match=r"tried aten\.addmm\.default.*\[no-fault-shown\]"):
        excerpt_of(named)
