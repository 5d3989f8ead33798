"""Integers that a 16-bit format cannot hold become equal to their neighbours.

What it checks:
    Ops that turn integers (positions, counts, indices) into fp16 or bf16: how many come out as
    another integer, how many fall together, and what that does to loss and gradients.

Why it matters:
    bf16 holds all integers up to 256, fp16 up to 2048. Beyond, positions 1000 and 1001 are the
    same number, and whatever is computed from them, a rotary embedding say, is the same too.

Example:
    t = torch.arange(n).to(inv_freq.dtype)      # inv_freq was cast with the model

Remedy:
    Compute positions and counts in integers or fp32 and cast the result of the trigonometry.

References:
    IEEE 754-2019, section 3.3; https://github.com/huggingface/transformers/pull/29285
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import in_fp32, number, op_in, place
from fp16doctor.diagnose.shares import finite_traces, is_changed, sink_error
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.precision import IntegerLoss
from fp16doctor.schema.trace import ReplayTrace


@rule(code="FD305", name="inexact-integers", needs=("traces",))
def inexact_integers(seen: Observations) -> Iterator[Finding]:
    """Yield a finding for each place at which integers fall together."""
    worst: dict[object, tuple[bool, ReplayTrace, IntegerLoss]] = {}
    for trace in finite_traces(seen):
        for loss in trace.precision.integers if trace.precision is not None else ():
            if loss.collisions:
                here = (is_changed(trace), trace, loss)
                known = worst.get(loss.site.source)
                if known is None or (here[0] and not known[0]):
                    worst[loss.site.source] = here
    for changed, trace, loss in worst.values():
        yield _finding(trace, loss, Severity.ERROR if changed else Severity.NOTE)


def _finding(trace: ReplayTrace, loss: IntegerLoss, severity: Severity) -> Finding:
    return Finding(
        code="FD305",
        name="inexact-integers",
        severity=severity,
        fault=Fault.PRECISION_LOSS,
        what=(
            f"{op_in(loss.site)} rounds {loss.changed} of {loss.total} integers to {loss.format}, "
            f"{loss.collisions} of them become equal to a neighbour"
        ),
        cause=(
            f"{loss.format} holds all integers up to {number(loss.exact_up_to)}; "
            f"{place(loss.site)} has values up to {number(loss.largest)}. The loss differs from "
            f"the {trace.reference} replay by {number(100 * sink_error(trace, 'loss'))} %, the "
            f"gradients by {number(100 * sink_error(trace, 'gradients'))} %."
        ),
        site=loss.site,
        evidence=(
            Evidence("largest integer", loss.largest, "recorded", limit=loss.exact_up_to,
                     limit_name="largest exact integer", format=loss.format,
                     count=loss.changed, total=loss.total),
        ),
        advice=f"{in_fp32(loss.site)}: positions and counts need more than {loss.format}'s bits",
    )  # fmt: skip
