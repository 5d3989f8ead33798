"""A step is given an inf or NaN: the batch or a parameter holds it before any op has run.

What it checks:
    What the ops of an examined step read from outside it, where the value goes on to the loss or
    the gradients and fp32 has it as well. A mask of −inf whose loss is finite is none, nor is a
    parameter that an earlier step of the run made NaN.

Why it matters:
    No op is at fault, and no format, loss scale or keep-list changes it: a missing value in a
    table, a label computed as x/0, memory that was never filled, a checkpoint that was saved too
    late. One such sample makes every parameter NaN.

Example:
    x = torch.from_numpy(table)    # one cell of the table is NaN

Remedy:
    Check the data of that batch, or what fills or loads the parameter; drop the samples that hold
    a NaN, or give them a value of their own.

References:
    IEEE 754-2019, 6.1 and 6.2 (infinities and NaN are passed on)
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.poisoned import harmful, is_from_outside, leaves_something
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import counted, joined, place
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.trace import Poison, ReplayTrace

_ORDER = ("loss", "gradients", "parameters", "buffers")


@rule(code="FD113", name="nonfinite-input", needs=("recording", "traces"))
def nonfinite_input(seen: Observations) -> Iterator[Finding]:
    """Yield one finding: the first step that took harm, else the first that the script left out."""
    spared: Finding | None = None
    for trace in sorted(seen.traces, key=lambda t: t.step):
        found = harmful(seen, trace)
        if found is not None:
            if is_from_outside(seen, trace, found):
                yield _finding(seen, trace, found)
            return
        if leaves_something(trace):
            break
        left = next((p for p in trace.poisons if p.left and not p.reaches), None)
        if spared is None and left is not None:
            spared = _finding(seen, trace, left)
    if spared is not None:
        yield spared


def _writer(seen: Observations, trace: ReplayTrace, poison: Poison) -> Poison | None:
    """What the end of the step before copied into the parameter or buffer."""
    before = seen.trace(trace.step - 1) if poison.is_parameter or poison.is_buffer else None
    sink = "parameters" if poison.is_parameter else "buffers"
    found = before.poisons if before is not None else ()
    return next((p for p in found if sink in p.reaches), None)


def _finding(seen: Observations, trace: ReplayTrace, poison: Poison) -> Finding:
    note = not poison.reaches or _is_skipped(seen, trace.step)
    writer = _writer(seen, trace, poison)
    return Finding(
        code="FD113",
        name="nonfinite-input",
        severity=Severity.NOTE if note else Severity.ERROR,
        fault=Fault.NAN_BIRTH,
        what=(
            f"{_name(poison)} already holds {_held(poison)} when step {trace.step} first reads it"
        ),
        cause=f"No op made it: {_way(trace, poison)}{_put_there(writer)}",
        site=poison.site,
        cause_site=_cause_site(poison, writer),
        consequences=poison.later_nonfinite,
        chain=(poison.site,),
        reaches=tuple(s for s in _ORDER if s in poison.reaches),
        advice=_advice(trace, poison),
        left_out=poison.left and not poison.reaches,
    )


def _cause_site(poison: Poison, writer: Poison | None) -> OpSite | None:
    made_at = poison.made_at if writer is None else writer.made_at
    return made_at if made_at != poison.site else None


def _put_there(writer: Poison | None) -> str:
    if writer is None:
        return ""
    return f" {place(writer.made_at)} put it there in step {writer.made_at.step}."


def _is_skipped(seen: Observations, number: int) -> bool:
    """Whether the scaler skipped the step and training went on."""
    step = seen.step(number)
    if step is None or not step.skipped:
        return False
    return not seen.final or any(not s.skipped for s in seen.steps_after(number))


def _name(poison: Poison) -> str:
    if poison.is_parameter or poison.is_buffer:
        kind = "parameter" if poison.is_parameter else "buffer"
        return f"{kind} `{poison.name}`" if poison.name else f"a {kind}"
    return "the batch" if poison.is_batch else "a tensor made outside the step"


def _held(poison: Poison) -> str:
    return "NaN" if poison.nan else "inf"


def _way(trace: ReplayTrace, poison: Poison) -> str:
    heirs = counted(poison.later_nonfinite, "op")
    inherit = "inherits" if poison.later_nonfinite == 1 else "inherit"
    sinks = tuple(s for s in _ORDER if s in poison.reaches)
    end = f"It reaches {joined(sinks)}." if sinks else "No backward took it up."
    return (
        f"the step takes it in at {place(poison.site)}, in the {trace.reference} replay as well. "
        f"{heirs} {inherit} it. {end} No dtype, loss scale or keep-list changes it."
    )


def _advice(trace: ReplayTrace, poison: Poison) -> str:
    if poison.is_parameter or poison.is_buffer:
        return f"check what fills or loads {_name(poison)} before step {trace.step}"
    if poison.is_batch:
        return f"check the data of the batch of step {trace.step} for NaN and inf"
    return f"check what makes the tensor that step {trace.step} reads there"
