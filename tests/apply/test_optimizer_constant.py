"""An optimizer's eps is another one inside the context, and the script's own behind it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fp16doctor.apply.optimizer_constant import optimizer_constant
from fp16doctor.apply.part import Order
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.prescription import Remedy, RemedyKind
from fp16doctor.schema.recording import Outcome, OutcomeKind, RunInfo

CHANGE = "# train.py:35: pass 0.0001 for what is 1e-08 in this call"


def order(change: str = CHANGE, phase: Phase = Phase.OPTIMIZER) -> Order:
    run = RunInfo("train.py", (), Outcome(OutcomeKind.FINISHED), "", "", "", "cpu", "", 0.0)
    site = OpSite(0, phase, "aten.addcdiv_.default", 1)
    finding = Finding("FD111", "n", Severity.ERROR, Fault.NAN_BIRTH, "w", "c", site)
    lines: Any = None
    remedy = Remedy(RemedyKind.CODE_FIX, "t", change=change, target=("line:train.py:35",))
    return Order(remedy, (finding,), run, lines)


def test_every_group_gets_the_other_eps() -> None:
    part = optimizer_constant(order())
    assert part is not None
    assert part.missed() == ("line:train.py:35",)
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    with part.outer[0]:
        groups = [{"params": a.parameters()}, {"params": b.parameters(), "eps": 1e-3}]
        inside = torch.optim.Adam(groups)
    assert [g["eps"] for g in inside.param_groups] == [1e-4, 1e-3]
    assert inside.defaults["eps"] == 1e-4
    assert part.missed() == ()
    assert torch.optim.Adam(a.parameters()).defaults["eps"] == 1e-8


def test_only_a_number_of_an_optimizer_is_taken() -> None:
    assert optimizer_constant(order("")) is None
    assert optimizer_constant(order(phase=Phase.FORWARD)) is None
    assert optimizer_constant(order("# train.py:3\n- a\n+ b")) is None
