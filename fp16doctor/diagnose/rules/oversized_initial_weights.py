"""Initial weights make every layer of a plain network multiply what passes through it.

What it checks:
    The layers of the first step, in order: the RMS of each weight against √(2 / fan_in), and how
    the RMS of the inputs grows from layer to layer. It is reported where four and more consecutive
    layers have weights of twice that size and each at least doubles what the next one gets; it is
    an error where an op behind them overflows in the first ten steps.

Why it matters:
    A weight matrix multiplies the RMS by its standard deviation times √fan_in, whatever the size
    of the inputs: over eight layers a factor of 4 is 65536. A wider format moves the limit, but
    the loss and the gradients of such a network are as large, and training from there diverges.

Example:
    w.div_(w.std(1, keepdim=True))    # unit variance: a layer of 32 inputs multiplies by 4

Remedy:
    Initialise with torch.nn.init.kaiming_normal_ and the nonlinearity that follows, or divide by
    √fan_in.

References:
    He et al., Delving Deep into Rectifiers, arXiv 1502.01852, section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.gains import LARGER, Run, growing_runs
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import number
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.trace import Event, EventKind

FIRST_STEPS = 10  # later, training has made the weights what they are
_OVERFLOWS = (EventKind.OVERFLOW, EventKind.INTERNAL_OVERFLOW)


@rule(
    code="FD502",
    name="oversized-initial-weights",
    needs=("recording", "traces"),
    explains=("FD101", "FD102", "FD104"),
)
def oversized_initial_weights(seen: Observations) -> Iterator[Finding]:
    """Yield one finding for each run of layers that grows by its weights."""
    for run in growing_runs(seen):
        yield _finding(run, _overflow_behind(seen, run))


def _overflow_behind(seen: Observations, run: Run) -> Event | None:
    """The first overflow of the forward pass or the loss behind the first of the layers."""
    first = run.layers[0].site.index
    early = (t for t in seen.traces if t.step < FIRST_STEPS)
    for trace in sorted(early, key=lambda t: t.step):
        for event in trace.events:
            ahead = event.site.phase in (Phase.FORWARD, Phase.LOSS) and event.site.index >= first
            if ahead and event.kind in _OVERFLOWS and event.reaches:
                return event
    return None


def _finding(run: Run, event: Event | None) -> Finding:
    first, last = run.layers[0], run.layers[-1]
    count = len(run.layers)
    return Finding(
        code="FD502",
        name="oversized-initial-weights",
        severity=Severity.NOTE if event is None else Severity.ERROR,
        fault=Fault.INITIALIZATION,
        what=(
            f"initial weights of {count} layers in a row, `{first.weight}` to `{last.weight}`, are "
            f"{number(run.he_factor)} times √(2/fan_in): values grow by {number(run.factor)} a "
            "layer"
        ),
        cause=(
            f"The RMS goes from {number(first.input_rms)} in front of these layers to "
            f"{number(last.output_rms)} behind them, {number(run.total)} binades, whatever the "
            "size of the inputs."
        ),
        site=last.site if event is None else event.site,
        evidence=(
            Evidence("weight RMS over √(2/fan_in)", run.he_factor, "replayed:fp32", limit=LARGER,
                     limit_name="bound of this rule"),
            Evidence("growth per layer", run.factor, "replayed:fp32", limit=LARGER,
                     limit_name="bound of this rule"),
        ),
        reaches=() if event is None else event.reaches,
        advice=(
            "initialise these weights with `torch.nn.init.kaiming_normal_`, whose standard "
            "deviation is √(2/fan_in), or divide them by √fan_in"
        ),
    )  # fmt: skip
