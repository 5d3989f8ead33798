"""Bundles of small trainings, made as the pipeline makes them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from odd_trainings import checkpoint_reentrant, lstm
from plain_trainings import fp16_scaler
from replaying import watch
from torch import nn
from torch.nn import functional as F

from fp16doctor.replay.outcome import outcome_of
from fp16doctor.schema.bundle import Bundle, Origin
from fp16doctor.schema.tape import Tape


def bundles_of(function: Callable[[], Any]) -> list[Bundle]:
    """Return one bundle for each training step of a function."""
    found: list[Bundle] = []

    def look(tape: Tape) -> None:
        if tape.backward_ends:
            leaves = {n: replace(x, data=x.data.clone()) for n, x in tape.leaves.items()}
            origin = Origin("train.py", tape.step, "cpu", "0", torch.__version__)
            kept = replace(tape, leaves=leaves, final={})
            found.append(Bundle(kept, origin, outcome_of(tape)))

    watch(function, look=look)
    return found


def one_linear() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


def transformer() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    model = nn.Sequential(nn.Embedding(11, 8), layer, nn.Linear(8, 11))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        ids = torch.randint(0, 11, (2, 5))
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def convolutional() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    model.append(nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        loss = F.cross_entropy(model(torch.randn(3, 2, 6, 6)), torch.tensor([0, 1, 2]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


FIVE = (transformer, convolutional, lstm, checkpoint_reentrant, fp16_scaler)

if __name__ == "__main__":  # the other process: replays the bundles it is given
    from pathlib import Path

    from fp16doctor.record.bundle import read_bundle
    from fp16doctor.replay.outcome import repeat

    for name in sys.argv[1:]:
        bundle = read_bundle(Path(name))
        seen = repeat(bundle.tape, bundle.outcome)
        print(Path(name).stem, seen.compared, seen.differing, repr(seen.loss))
