"""What an optimizer keeps from step to step, and how much of it a 16-bit format makes zero.

Adam keeps running means of the gradient and of its square; a square is zero in fp16 for gradients
whose own size is no matter. Such a step is divided by eps alone.

Source: Kingma and Ba, Adam, arXiv 1412.6980, section 2.1. Must not know bounds or words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.environment import Live
from fp16doctor.replay.op_traits import base
from fp16doctor.replay.trajectory import Course, follow
from fp16doctor.replay.values import FORMAT_NAMES, HALF
from fp16doctor.schema.location import Phase
from fp16doctor.schema.policy import FP32, PrecisionPolicy
from fp16doctor.schema.tape import Tape, refs_in

_ROOTS = ("sqrt", "rsqrt", "_foreach_sqrt", "_foreach_rsqrt")


@dataclass(frozen=True, slots=True)
class StateLoss:
    """One state tensor behind consecutive steps."""

    format: str  # it is stored in, under the policy
    total: int  # elements
    zeros: int  # zero under the policy, and not in fp32
    divides: bool  # the step is divided by its root

    @property
    def share(self) -> float:
        """Share of the elements that are lost."""
        return self.zeros / self.total if self.total else 0.0


def states_of(tape: Tape) -> dict[int, bool]:
    """Return address -> (its root is taken), of all 16-bit tensors that the optimizer keeps.

    That is what it writes in place and holds at the end of the step, weights and gradients left
    out; the first step makes it.
    """
    producers, found = producers_of(tape), {}
    for number, key in tape.keys.items():
        leaf, ref = tape.leaves.get(number), producers.widest_view(number)
        if ref is None or ref.dtype not in HALF or number in tape.gradients:
            continue
        writers = [tape.ops[i] for i in producers.writers(number) if number in tape.ops[i].mutates]
        kept = any(c.site.phase is Phase.OPTIMIZER for c in writers)
        if kept and (leaf is None or not leaf.is_parameter):
            found[key] = _is_under_a_root(tape, number)
    return found


def _is_under_a_root(tape: Tape, number: int) -> bool:
    calls = (c for c in tape.ops if base(c.op).removesuffix("_") in _ROOTS)
    return any(r.storage == number for c in calls for r in refs_in((c.args, c.kwargs)))


def lost_state(
    tapes: tuple[Tape, ...], policy: PrecisionPolicy
) -> tuple[tuple[StateLoss, ...], Course]:
    """Return every state tensor behind consecutive steps under a policy, beside fp32; the course.

    Both begin with what the first step found and carry their own state on. Nothing is returned of
    a run that ends before the last step.
    """
    mine: dict[int, Live] = {}
    wide: dict[int, Live] = {}
    course = follow(tapes, policy, carried=mine)
    other = follow(tapes, FP32, carried=wide)
    if not tapes or course.failure or other.failure or len(course.losses) < len(tapes):
        return (), course
    states = {k: root for t in tapes for k, root in states_of(t).items()}
    both = ((mine[k], wide[k], root) for k, root in states.items() if k in mine and k in wide)
    return tuple(_loss(a, b, root) for a, b, root in both), course


def _loss(mine: Live, wide: Live, root: bool) -> StateLoss:
    a, b = _values(mine), _values(wide)
    if a.numel() != b.numel():
        return StateLoss(FORMAT_NAMES[mine.live], a.numel(), 0, root)
    zeros = int(((a == 0) & (b != 0) & torch.isfinite(b)).sum())
    return StateLoss(FORMAT_NAMES[mine.live], a.numel(), zeros, root)


def _values(live: Live) -> Tensor:
    return torch.empty(0, dtype=live.live, device=live.storage.device).set_(live.storage)
