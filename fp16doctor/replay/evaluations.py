"""Steps that evaluate the model several times: an optimizer with a closure, L-BFGS.

Between two evaluations it moves the weights by numbers that Python read off the run. Where those
are NaN, a replay in another format meets NaN weights, whatever the format does; the first
evaluation, with the weights the step began with, tells all the same.

Must not know what is examined or tried.
"""

from __future__ import annotations

from dataclasses import replace

from fp16doctor.replay.dataflow import writes
from fp16doctor.schema.location import Phase
from fp16doctor.schema.tape import Tape

_EVALUATES = (Phase.FORWARD, Phase.LOSS)


def first_evaluation(tape: Tape) -> Tape | None:
    """Return the step up to the first change of its weights; None where no forward follows it."""
    parameters = {n for n, leaf in tape.leaves.items() if leaf.is_parameter}
    first = tape.backward_ends[0] if tape.backward_ends else len(tape.ops)
    moved = (c.index for c in tape.ops[first:] if not parameters.isdisjoint(writes(c)))
    end = next(moved, len(tape.ops))
    last = tape.backward_ends[-1] if tape.backward_ends else 0
    if not any(c.site.phase in _EVALUATES for c in tape.ops[end:last]):
        return None
    return _up_to(tape, end)


def _up_to(tape: Tape, end: int) -> Tape:
    ops = tape.ops[:end]
    written = {n for call in ops for n in writes(call)}
    return replace(
        tape,
        ops=ops,
        losses=tuple(m for m in tape.losses if m.index < end),
        gradients={g: name for g, name in tape.gradients.items() if g in written},
        backward_ends=tuple(i for i in tape.backward_ends if i <= end),
        snapshots={at: data for at, data in tape.snapshots.items() if at[0] < end},
        optimizer_at=None,
        attempt=None,
        final={},
        keys={},
    )
