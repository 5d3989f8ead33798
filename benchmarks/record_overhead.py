"""What recording costs: CPU time of a training step with and without a Recorder.

``python benchmarks/record_overhead.py`` prints one line a workload: CPU milliseconds a step bare,
ratio under a dispatch mode that does nothing, ratio under a Recorder whose tapes are dropped, and
the microseconds the Recorder adds to one ATen call. Steps run A B B A; medians of the ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # the number of threads is read when torch is imported
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from fp16doctor.record.range_hooks import Look
from fp16doctor.record.recorder import Recorder
from fp16doctor.record.source_lines import SourceLines
from fp16doctor.record.survey_plan import SurveyPlan

Step = Callable[[], None]


class Nothing(TorchDispatchMode):
    """The floor under every tool of this kind."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def trainer(model: nn.Module, x: torch.Tensor, target: torch.Tensor, half: bool) -> Step:
    """Return one whole training step, under bf16 autocast where ``half``."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = F.cross_entropy(model(x).float(), target)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def mlp() -> Step:
    """Forty small layers: nothing but fixed cost."""
    layers = [m for _ in range(40) for m in (nn.Linear(64, 64), nn.ReLU())]
    return trainer(nn.Sequential(*layers), torch.randn(64, 64), torch.arange(64) % 64, False)


def transformer() -> Step:
    """Four encoder layers of width 128 in bf16."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 4)
            self.head = nn.Linear(128, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.body(x).mean(1))
            return out

    return trainer(Classifier(), torch.randn(8, 64, 128), torch.arange(8), True)


def cnn() -> Step:
    """Six convolutions with BatchNorm, fp32."""
    layers: list[nn.Module] = []
    for i in range(6):
        layers += [nn.Conv2d(3 if i == 0 else 32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    return trainer(nn.Sequential(*layers), torch.randn(16, 3, 32, 32), torch.arange(16) % 10, False)


class Watch:
    """A Recorder that drops its tapes, as a context; counts steps and ATen calls."""

    def __init__(self) -> None:
        self.calls = self.steps = 0

    @contextmanager
    def __call__(self) -> Any:
        """Record what runs inside."""
        recorder = Recorder(
            SourceLines(os.getcwd()),
            lambda r, roll: None,
            lambda done: None,
            plan=SurveyPlan(look=lambda step: Look.NOTHING),  # it has figures of its own
        )
        recorder.start()
        try:
            yield
        finally:
            recorder.stop()
        self.steps += len(recorder.book.steps)
        self.calls += sum(s.n_ops for s in recorder.book.steps)


def seconds(step: Step, context: Callable[[], AbstractContextManager[Any]], steps: int) -> float:
    """Return CPU seconds of one step inside ``context``."""
    with context():
        step()  # entering and the first step are not measured
        start = time.process_time()
        for _ in range(steps):
            step()
        return (time.process_time() - start) / steps


def measure(make: Callable[[], Step], rounds: int, steps: int) -> tuple[float, float, float, float]:
    """Return (bare ms a step, ratio no-op mode, ratio Recorder, µs added to an ATen call)."""
    torch.manual_seed(0)
    step, watch = make(), Watch()
    contexts: list[Callable[[], AbstractContextManager[Any]]] = [nullcontext, Nothing, watch]
    samples: list[list[float]] = [[], [], []]
    for turn in range(rounds):
        order = range(3) if turn % 2 == 0 else range(2, -1, -1)
        for k in order:
            samples[k].append(seconds(step, contexts[k], steps))
    bare, noop, taped = (statistics.median(s) for s in samples)
    calls = watch.calls / watch.steps
    return bare * 1e3, noop / bare, taped / bare, (taped - bare) / calls * 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    asked = parser.parse_args()
    print(f"{'':12} {'bare ms':>9} {'no-op':>7} {'recorder':>9} {'µs/call':>8}")
    for make in (mlp, transformer, cnn):
        bare, noop, taped, added = measure(make, asked.rounds, asked.steps)
        print(f"{make.__name__:12} {bare:9.2f} {noop:7.2f} {taped:9.2f} {added:8.1f}")


if __name__ == "__main__":
    main()
