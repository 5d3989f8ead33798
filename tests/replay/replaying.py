"""Records a function under the real Recorder and replays its steps at once, as the pipeline does.

Also checks, at every examination, that nothing of the user's was touched: no storage the tape holds
by reference, no random state.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from fp16doctor.record.recorder import Recorder
from fp16doctor.record.roll import Roll
from fp16doctor.record.source_lines import SourceLines
from fp16doctor.record.tape_builder import build_tape
from fp16doctor.replay.examine import examine
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.tape import Tape
from fp16doctor.schema.trace import Event, ReplayTrace, SinkState

HERE = str(Path(__file__).parent)


@dataclass
class Seen:
    """Steps of one function, and what examining them gave."""

    tapes: list[Tape] = field(default_factory=list)
    traces: list[ReplayTrace] = field(default_factory=list)
    cautions: tuple[str, ...] = ()
    result: Any = None

    @property
    def trained(self) -> list[ReplayTrace]:
        """Traces of the steps that have a backward."""
        pairs = zip(self.tapes, self.traces, strict=True)
        return [trace for tape, trace in pairs if tape.backward_ends]


def watch(
    function: Callable[[], Any],
    *,
    with_reference: bool = True,
    look: Callable[[Tape], None] | None = None,
    cautions: tuple[str, ...] = (),
) -> Seen:
    """Run ``function`` under a Recorder; examine each tape where the pipeline would.

    ``look`` is called instead of examining, with the tape, at the same place.
    """
    seen = Seen()

    def on_tape(recorder: Recorder, roll: Roll) -> None:
        tape = build_tape(recorder, roll)
        seen.tapes.append(tape)
        before = _everything(tape)
        if look is not None:
            look(tape)
        else:
            seen.traces.append(examine(tape, with_reference=with_reference))
        assert _same(before, _everything(tape)), "the replay touched what is the user's"

    recorder = Recorder(SourceLines(HERE), on_tape, lambda done: None)
    recorder.start()
    try:
        seen.result = function()
    finally:
        recorder.stop()
    seen.cautions = tuple(recorder.cautions)
    assert seen.cautions == cautions, recorder.cautions
    return seen


def tapes(function: Callable[[], Any]) -> list[Tape]:
    """Return the tapes of a function whose tensors nothing overwrites afterwards."""
    return watch(function, look=lambda tape: None).tapes


def _everything(tape: Tape) -> tuple[Any, ...]:
    held = [leaf.data for leaf in tape.leaves.values()] + [*tape.final.values()]
    copies = [t.clone() for t in held if t.numel() == 0 or t.data_ptr()]
    numpy_state: Any = numpy.random.get_state()
    states = (random.getstate(), numpy_state[1].tolist(), numpy_state[2])
    return copies, torch.get_rng_state(), states


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    tensors = all(torch.equal(x, y) for x, y in zip(a[0], b[0], strict=True))
    return tensors and torch.equal(a[1], b[1]) and a[2] == b[2]


def line_of(function: Callable[..., Any], fragment: str) -> int:
    """Return the number of the only line of a function that contains ``fragment``."""
    lines, first = inspect.getsourcelines(function)
    (found,) = [first + i for i, line in enumerate(lines) if fragment in line]
    return found


def line(site: OpSite | None) -> int:
    """Return the line number of a site."""
    assert site is not None
    assert site.source is not None
    return site.source.line


def only(events: tuple[Event, ...], op: str) -> Event:
    """Return the only event of an op, named without namespace and overload."""
    found = [e for e in events if short(e.site.op) == op]
    assert len(found) == 1, [(short(e.site.op), e.kind.value) for e in events]
    return found[0]


def short(op: str) -> str:
    return op.split(".")[1]


def sink(trace: ReplayTrace, name: str) -> SinkState:
    """Return the state of one sink."""
    return next(s for s in trace.sinks if s.sink == name)


def half_parameter(*values: float, dtype: torch.dtype = torch.float16) -> Tensor:
    """Return a leaf that trains."""
    return torch.tensor(values, dtype=dtype).requires_grad_()
