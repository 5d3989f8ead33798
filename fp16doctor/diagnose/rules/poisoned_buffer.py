"""A buffer holds inf or NaN, and no later step takes it out again.

What it checks:
    Module buffers (running mean and variance above all) at the end of every examined step, where
    no birth of that step explains them.

Why it matters:
    A running mean that was NaN once stays NaN: mean = (1 − m)·mean + m·x. Training does not read
    it, so that the loss looks fine; evaluation does, and every output is NaN.

Example:
    model.eval()                       # running_mean was NaN since step 11
    val = criterion(model(x), y)       # NaN

Remedy:
    Reset the buffer (module.reset_running_stats()) and keep the op that made it non-finite in
    fp32, or drop the batch.

References:
    torch/nn/modules/batchnorm.py; https://github.com/pytorch/pytorch/issues/58392
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import number
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.trace import ReplayTrace, SinkState


@rule(code="FD106", name="poisoned-buffer", needs=("traces",))
def poisoned_buffer(seen: Observations) -> Iterator[Finding]:
    """Yield one finding for the first step that shows it, unless a birth explains it."""
    if any("buffers" in reached for t in seen.traces for reached in _reached(t)):
        return
    for trace in seen.traces:
        state = next((s for s in trace.sinks if s.sink == "buffers" and s.nonfinite), None)
        if state is not None:
            yield _finding(trace, state)
            return


def _reached(trace: ReplayTrace) -> list[tuple[str, ...]]:
    return [e.reaches for e in trace.events] + [p.reaches for p in trace.poisons]


def _finding(trace: ReplayTrace, state: SinkState) -> Finding:
    name = state.worst or "a buffer"
    return Finding(
        code="FD106",
        name="poisoned-buffer",
        severity=Severity.ERROR,
        fault=Fault.NAN_BIRTH,
        what=f"`{name}` is not finite at step {trace.step}, and stays so",
        cause=(
            "A running value keeps an inf or NaN that it took in once: training does not read it, "
            "evaluation does. No examined step shows where it came from."
        ),
        site=OpSite(
            step=trace.step, phase=Phase.FORWARD, op="", index=0,
            module_path=name.rpartition(".")[0],
        ),
        evidence=(
            Evidence("non-finite buffer elements", float(state.nonfinite), "recorded",
                     count=state.nonfinite, total=state.total),
        ),
        reaches=("buffers",),
        advice=f"reset `{name}` and keep what feeds it finite: {number(state.nonfinite)} elements "
        "are lost",
    )  # fmt: skip
