"""Activations grow from block to block until they leave the format.

What it checks:
    Chains of six and more numbered modules of one class, in order: the median growth of amax from
    output to output in the first measured step. It is reported where the chain gains a quarter of a
    binade a block and four binades in all; it is an error where an op of the chain overflows.

Why it matters:
    Without normalisation every residual branch adds its variance to the stream: with the usual
    initialisation it doubles from block to block. Another format moves the limit, it does not stop
    the growth, and the gradients grow the same way.

Example:
    for block in self.body:            # 32 of them, no normalisation
        x = x + block.conv2(relu(block.conv1(x)))

Remedy:
    Scale the branches: Fixup initialisation, a residual factor of 0.1, or a scalar that starts at
    0; or normalise.

References:
    Zhang et al., Fixup Initialization, arXiv 1901.09321, section 2; Lim et al., EDSR,
    arXiv 1707.02921, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.depth import Chain, chains
from fp16doctor.diagnose.gains import growing_runs
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import maximum, number
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.trace import Event, EventKind

SHORTEST = 6  # blocks
STEEPEST = 0.25  # binades a block
LEAST = 4.0  # binades in all


@rule(
    code="FD501", name="growing-residual-stream", needs=("recording",), explains=("FD101", "FD102")
)
def growing_residual_stream(seen: Observations) -> Iterator[Finding]:
    """Yield one finding for each chain that grows."""
    oversized = {x.weight for run in growing_runs(seen) for x in run.layers}
    for chain in chains(seen.recording.ranges, SHORTEST):
        if any(name.startswith(chain.stem) for name in oversized):
            continue  # it grows by what its layers are, not by what they add
        if chain.growth >= STEEPEST and chain.total >= LEAST:
            yield _finding(chain, _overflow_in(seen, chain))


def _overflow_in(seen: Observations, chain: Chain) -> Event | None:
    """The first overflow of the forward pass inside the chain."""
    for trace in seen.traces:
        for event in trace.events:
            inside = (event.site.module_path or "").startswith(chain.stem)
            if inside and event.kind is EventKind.OVERFLOW and event.site.phase is Phase.FORWARD:
                return event
    return None


def _finding(chain: Chain, event: Event | None) -> Finding:
    first, last = chain.blocks[0], chain.blocks[-1]
    count = len(chain.blocks)
    return Finding(
        code="FD501",
        name="growing-residual-stream",
        severity=Severity.NOTE if event is None else Severity.ERROR,
        fault=Fault.INITIALIZATION,
        what=(
            f"activations grow {number(2**chain.growth)}-fold a block, from "
            f"{number(chain.amax[0])} behind `{first.module_path}` to {number(chain.amax[-1])} "
            f"behind `{last.module_path}`{_overflows(event)}"
        ),
        cause=(
            f"{count} blocks of class {first.module_class} add to each other and nothing takes the "
            "gain back; the values are what the initial weights make of them."
        ),
        site=_site(chain, event),
        evidence=(
            Evidence("growth per block in binades", chain.growth, "recorded", limit=STEEPEST,
                     limit_name="bound of this rule", count=count, total=count),
        ),
        reaches=() if event is None else event.reaches,
        advice=(
            "initialise the branches so that the sum keeps its size (Fixup: last layer of each "
            "branch 0, the others × L^(-1/(2m-2))), or multiply each branch by 0.1"
        ),
    )  # fmt: skip


def _overflows(event: Event | None) -> str:
    if event is None:
        return ""
    return f", and pass {maximum(event.format)} in `{event.site.module_path}`"


def _site(chain: Chain, event: Event | None) -> OpSite:
    if event is not None:
        return event.site
    last = chain.blocks[-1]
    step = last.steps[0] if last.steps else 0
    return OpSite(
        step=step, phase=Phase.FORWARD, op="", index=0, module_path=last.module_path,
        module_class=last.module_class,
    )  # fmt: skip
