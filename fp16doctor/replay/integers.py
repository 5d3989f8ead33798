"""Integers that a 16-bit format cannot hold: positions, counts, indices that collide.

Must not know what they are used for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp16doctor.formats.number_format import get_format
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.player import Player
from fp16doctor.replay.values import FORMAT_NAMES
from fp16doctor.schema.precision import IntegerLoss
from fp16doctor.schema.tape import OpCall, TensorRef, refs_in

_COUNTS = frozenset(["cumsum"])  # of a 16-bit mask as well: its exact result tells
_CASTS = frozenset(["_to_copy", "copy_"])  # of positions that are floating-point numbers already
_DENSE = 0.5  # share of all integers between the ends that positions take
_MAKERS = frozenset(["_to_copy", "arange", "linspace", "copy_", "cumsum", "sum", "scalar_tensor"])


def integer_loss(call: OpCall, ref: TensorRef, mine: Tensor, other: Tensor) -> IntegerLoss | None:
    """Return what rounding did to an output that should be all integers; None if nothing."""
    name = call.op.split(".")[1]
    counts = name in _MAKERS and (name in _COUNTS or _from_integers(call))
    if not counts and name not in _CASTS:
        return None
    fmt = get_format(FORMAT_NAMES[torch_dtype(ref.dtype)])
    exact_up_to = float(2 ** (fmt.mantissa_bits + 1))
    a, b = mine.double(), other.double()
    if not b.numel() or not float(b.abs().max()) > exact_up_to:
        return None
    if not bool(torch.isfinite(b).all()) or not bool((b == b.round()).all()):
        return None
    changed = int((a != b).sum())
    values = b.unique()
    if not changed or not (counts or _dense(values)):
        return None
    return IntegerLoss(
        site=call.site,
        format=fmt.name,
        total=a.numel(),
        changed=changed,
        collisions=int(values.numel() - a.unique().numel()),
        largest=float(b.abs().max()),
        exact_up_to=exact_up_to,
    )


def _dense(values: Tensor) -> bool:
    """Tell positions from data that happen to be integers; of ascending, distinct values."""
    return values.numel() > _DENSE * float(values[-1] - values[0] + 1)


def same_integers(call: OpCall, run: Player, reference: Player) -> bool:
    """Tell whether both replays give the op the same integers.

    An index that rounding has moved (argmax, topk) is another one: what comes of it is no rounding
    of integers.
    """
    return all(
        torch.equal(run.env.tensor(r), reference.env.tensor(r))
        for r in refs_in((call.args, call.kwargs))
        if r.storage not in call.mutates
        and not torch_dtype(r.dtype).is_floating_point
        and run.env.has(r.storage)
        and reference.env.has(r.storage)
    )


def _from_integers(call: OpCall) -> bool:
    """Every tensor the op reads holds integers (or it reads none)."""
    written = set(call.mutates)
    reads = [r for r in refs_in((call.args, call.kwargs)) if r.storage not in written]
    return not any(torch_dtype(r.dtype).is_floating_point or "complex" in r.dtype for r in reads)
