"""What one op of a recorded step was given: how much of it has no value there, and what made it.

Must not know what is made of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.examine import random_state_kept
from fp16doctor.replay.op_traits import base
from fp16doctor.replay.solo import SoloPlayer
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.policy import AS_RUN
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

_OF_POSITIVES = ("log", "log2", "log10", "sqrt", "rsqrt")
# Hand on the elements they are given, or some of them.
_SELECT = frozenset(
    ("_to_copy", "clone", "contiguous", "gather", "index", "index_select", "select", "slice",
     "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "permute", "transpose",
     "masked_select", "copy", "alias")
)  # fmt: skip
_COUNTS = _SELECT | {"sum"}


@dataclass(frozen=True, slots=True)
class OperandFacts:
    """Of all ops that were looked at, in one step or several."""

    total: int  # elements
    outside: int  # where the op has no value at all: log of a negative number
    at_edge: int  # there, or where it or its derivative is infinite
    least: float  # smallest element; 0 where there is none
    is_count: bool  # a sum of integers or truth values, whatever format they are stored in
    made_by: OpSite | None  # the op that computed what these elements were taken from


def together(first: OperandFacts, other: OperandFacts) -> OperandFacts:
    """Return the facts of two steps as one."""
    return OperandFacts(
        first.total + other.total,
        first.outside + other.outside,
        first.at_edge + other.at_edge,
        min(first.least, other.least),
        first.is_count and other.is_count,
        first.made_by or other.made_by,
    )


def facts_of(tape: Tape, calls: tuple[OpCall, ...], place: int) -> OperandFacts:
    """Return what argument ``place`` of some ops held in the run.

    Raises:
        ReplayError: the step cannot be played.
    """
    sums = [_sum_of(tape, c, c.args[place]) for c in calls]
    given = [(c, c.args[place]) for c in calls]
    added = [(s, refs_in(s.args)[0]) for s in sums if s is not None]
    found = _values(tape, [*given, *added])
    values, addends = found[: len(given)], found[len(given) :]
    flat = torch.cat([v.reshape(-1).double() for v in values])
    name = base(calls[0].op).rstrip("_")
    known = flat[torch.isfinite(flat)]
    made = _maker(tape, calls[0], calls[0].args[place])
    return OperandFacts(
        flat.numel(),
        int(_outside(name, flat).sum()),
        int(_at_edge(name, flat).sum()),
        float(known.min()) if known.numel() else 0.0,
        all(_is_count(tape, c, c.args[place]) for c in calls)
        or (len(addends) == len(calls) and _whole(addends)),
        None if made is None else made.site,
    )


def _values(tape: Tape, wanted: list[tuple[OpCall, TensorRef]]) -> list[Tensor]:
    """Return what each reference holds in front of its op."""
    found: dict[int, Tensor] = {}
    with random_state_kept(), torch.no_grad():
        player = SoloPlayer(tape, AS_RUN)
        for call in tape.ops[: max(c.index for c, _ in wanted) + 1]:
            for place, (reader, ref) in enumerate(wanted):
                if reader.index == call.index:
                    player.load_snapshots(call)
                    found[place] = player.env.tensor(ref).clone()
            player.play(call)
    return [found[place] for place in range(len(wanted))]


def _sum_of(tape: Tape, call: OpCall, ref: TensorRef) -> OpCall | None:
    """The sum whose elements a value consists of, None where it is none."""
    made = _maker(tape, call, ref)
    return made if made is not None and base(made.op) == "sum" and refs_in(made.args) else None


def _whole(values: list[Tensor]) -> bool:
    """Tell whether all are whole numbers, not all of them 0: those of a mask kept as floats."""
    some = any(bool((v != 0).any()) for v in values)
    return some and all(bool((v == v.round()).all()) for v in values)


def _outside(op: str, x: Tensor) -> Tensor:
    if op in _OF_POSITIVES:
        return x < 0
    if op == "log1p":
        return x < -1
    return x.abs() > 1 if op in ("acos", "asin") else torch.zeros_like(x, dtype=torch.bool)


def _at_edge(op: str, x: Tensor) -> Tensor:
    edge = x == 0
    if op in ("acos", "asin"):
        edge = x.abs() == 1
    elif op == "logsumexp":
        edge = x == float("-inf")
    elif op == "log1p":
        edge = x == -1
    return edge | _outside(op, x)


def _is_count(tape: Tape, call: OpCall, ref: TensorRef) -> bool:
    """Tell whether nothing but sums stands between a value and integers or truth values."""
    if not torch_dtype(ref.dtype).is_floating_point:
        return True
    made = _writer(tape, call, ref)
    if made is None or base(made.op).rstrip("_") not in _COUNTS:
        return False
    given = refs_in(made.args)
    return bool(given) and _is_count(tape, made, given[0])


def _maker(tape: Tape, call: OpCall, ref: TensorRef) -> OpCall | None:
    """The op that computed what a value's elements were taken from."""
    made = _writer(tape, call, ref)
    while made is not None and base(made.op).rstrip("_") in _SELECT and refs_in(made.args):
        made = _writer(tape, made, refs_in(made.args)[0])
    return made


def _writer(tape: Tape, call: OpCall, ref: TensorRef) -> OpCall | None:
    index = producers_of(tape).last_writer(ref.storage, call.index)
    return None if index is None else tape.ops[index]
