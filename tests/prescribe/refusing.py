"""A step that ends in a call which fp16 refuses, watched as a scan watches a script."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.pipeline import ScanOptions, Session
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.recording import Outcome, OutcomeKind

Masking = Callable[[Tensor, Tensor], Tensor]


class Scores(nn.Module):
    def __init__(self, masking: Masking) -> None:
        super().__init__()
        self.query, self.value, self.masking = nn.Linear(6, 6), nn.Linear(6, 3), masking

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ x.transpose(-1, -2).half()
        scores = self.masking(scores, torch.eye(4, dtype=torch.bool))
        return torch.softmax(scores, -1) @ self.value(x)


def train(masking: Masking, steps: int = 1) -> None:
    torch.manual_seed(0)
    model = Scores(masking)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(torch.randn(2, 4, 6)).float().mean(1), torch.arange(2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def scanned(script: Callable[[], None]) -> tuple[Session, Diagnosis]:
    """Watch a function to its end, which may be an exception, and return its diagnosis."""
    session = Session(ScanOptions(), __file__, ())
    outcome, ended = Outcome(OutcomeKind.FINISHED), None
    try:
        with session:
            script()
    except (RuntimeError, ValueError) as error:
        outcome = Outcome(OutcomeKind.RAISED, 1, type(error).__name__, str(error))
        ended = error
    return session, session.finish(outcome, ended)
