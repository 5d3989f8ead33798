"""Under ``scan`` nothing is compiled, and ``torch.compile`` is afterwards what it was."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from fp16doctor.pipeline import ScanOptions, Session
from fp16doctor.record.eager import Eager
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.recording import Outcome, OutcomeKind


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(4, 8)
        nn.init.constant_(self.wide.weight, 300.0)
        self.out = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.wide(x)
        return self.out(h * h)


def train() -> object:
    torch.manual_seed(0)
    model = torch.compile(Net(), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(torch.ones(2, 4)).float(), torch.tensor([0, 1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert model._orig_mod is not None
    return model


def scanned(*, eager: bool) -> Diagnosis:
    session = Session(ScanOptions(eager=eager, budget_s=5.0), __file__, ())
    with session:
        held = train()  # noqa: F841  # as a script does until its end
    return session.finish(Outcome(OutcomeKind.FINISHED))


def test_each_op_of_a_compiled_model_has_its_line_and_its_module() -> None:
    original = torch.compile
    diagnosis = scanned(eager=True)
    site = diagnosis.findings[0].site
    assert site is not None
    assert site.source is not None
    assert site.source.text == "return self.out(h * h)"
    (told,) = (w.message for w in diagnosis.warnings if w.slug == "not-compiled")
    assert told.startswith("torch.compile was called once and compiled nothing")
    assert torch.compile is original
    import torch._dynamo.config as config

    assert config.disable is False


def test_without_a_call_there_is_nothing_to_tell_and_to_put_back() -> None:
    eager, original = Eager(), torch.compile
    eager.start()
    eager.stop()
    assert (eager.asked, torch.compile) == (0, original)


def test_a_script_that_replaces_torch_compile_keeps_its_own() -> None:
    eager, original = Eager(), torch.compile
    eager.start()
    try:
        torch.compile = mine = lambda model: model
        eager.stop()
        assert torch.compile is mine
    finally:
        torch.compile = original
