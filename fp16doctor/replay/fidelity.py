"""Is the replay as run equal, bit for bit, to what the script left behind?

Must not know references or births.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.player import Player
from fp16doctor.schema.tape import Tape, TensorRef, refs_in
from fp16doctor.schema.trace import Fidelity


def compare(tape: Tape, run: Player) -> Fidelity:
    """Compare, through the views the tape names, every storage alive at the recording's end.

    Bytes of a storage that no view covers are workspace of a kernel and mean nothing.
    """
    compared, largest, first = 0, 0.0, None
    for number, refs in written_views(tape).items():
        left = tape.final.get(number)
        if left is None or not run.env.has(number):
            continue
        compared += 1
        for ref, index in refs.items():
            gap = _gap(run.env.tensor(ref), _left(left, ref))
            if gap is not None:
                largest = max(largest, gap)
                first = index if first is None else min(first, index)
    site = tape.ops[first].site if first is not None else None
    return Fidelity(first is None, compared, largest, site)


def written_views(tape: Tape) -> dict[int, dict[TensorRef, int]]:
    """Return storage -> {view an op wrote: that op}, versions left out."""
    views: dict[int, dict[TensorRef, int]] = {}
    for call in tape.ops:
        written = set(call.mutates)
        refs = refs_in(call.outputs)
        refs += [r for r in refs_in((call.args, call.kwargs)) if r.storage in written]
        for ref in refs:
            views.setdefault(ref.storage, {})[replace(ref, version=0)] = call.index
    return views


def _left(data: Tensor, ref: TensorRef) -> Tensor:
    out = torch.empty(0, dtype=torch_dtype(ref.dtype), device=data.device)
    return out.set_(data.untyped_storage(), ref.offset, ref.shape, ref.stride)


def _gap(mine: Tensor, left: Tensor) -> float | None:
    """Return the largest absolute difference, None where all bits are the same."""
    if mine.numel() == 0:
        return None
    a, b = mine.contiguous(), left.contiguous()
    if torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)):
        return None
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    x, y = a.double(), b.double()
    if bool((torch.isnan(x) != torch.isnan(y)).any()):
        return float("inf")
    gap = torch.where(x == y, torch.zeros_like(x), (x - y).abs())
    return float(torch.nan_to_num(gap, nan=0.0, posinf=float("inf")).max())
