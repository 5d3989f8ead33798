"""A step recorded on a GPU, made ready for a machine without one.

Tensors, device arguments and generators are moved to the CPU. A GPU's generator gives other numbers
than a CPU's, so each random op gets a state of its own: the draws differ from the recorded ones
and are the same in every replay.

Must not know files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fp16doctor.schema.bundle import Bundle
from fp16doctor.schema.tape import Mark, OpCall, TensorRef, refs_in

_CPU_STATE = 64  # bytes: a CUDA generator's state has 16, a CPU generator's 5 thousand


def on_this_machine(bundle: Bundle, *, available: bool | None = None) -> Bundle:
    """Return the bundle with the devices that are not here replaced by the CPU.

    ``available`` tells whether there is a GPU; None asks torch.
    """
    here = torch.cuda.is_available() if available is None else available
    found = {r.device for c in bundle.tape.ops for r in refs_in((c.args, c.kwargs, c.outputs))}
    moved = tuple(sorted(d for d in found if d not in ("", "cpu") and not (here and "cuda" in d)))
    if not moved:
        return bundle
    tape = bundle.tape
    ops = tuple(_moved_op(call) for call in tape.ops)
    losses = tuple(Mark(m.index, _moved(m.ref)) for m in tape.losses)
    return replace(bundle, tape=replace(tape, ops=ops, losses=losses), moved=moved)


def _moved_op(call: OpCall) -> OpCall:
    rng = call.rng
    if rng is not None and rng.numel() <= _CPU_STATE:
        rng = _own_state(call.index)
    return replace(
        call,
        args=tuple(map(_moved, call.args)),
        kwargs={k: _moved(v) for k, v in call.kwargs.items()},
        outputs=_moved(call.outputs),
        generator=None if call.generator is None else "cpu",
        rng=rng,
    )


def _own_state(index: int) -> Tensor:
    return torch.Generator().manual_seed(index).get_state()


def _moved(value: Any) -> Any:
    if isinstance(value, TensorRef):
        return replace(value, device="cpu")
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, torch.Generator):
        return torch.Generator()
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(v) for v in value)
    return value
