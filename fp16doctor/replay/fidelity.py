"""Is the replay as run equal, bit for bit, to what the script left behind?

Must not know references or births.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from fp16doctor.replay import op_traits
from fp16doctor.replay.calls import outputs_of, written_refs
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.player import Player
from fp16doctor.replay.values import as_real
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in
from fp16doctor.schema.trace import Fidelity


def compare(tape: Tape, run: Player) -> Fidelity:
    """Compare, through the views the tape names, every storage alive at the recording's end.

    Bytes of a storage that no view covers are workspace of a kernel and mean nothing. Two NaNs
    are equal whatever their payload, which depends on how a kernel happened to be vectorised.
    """
    compared, largest, first = 0, 0.0, None
    for number, refs in written_views(tape).items():
        left = tape.final.get(number)
        if left is None or not run.env.has(number) or without_memory(left, refs):
            continue
        compared += 1
        for ref, index in refs.items():
            gap = _gap(run.env.tensor(ref), left_in(left, ref))
            if gap is not None:
                largest = max(largest, gap)
                first = index if first is None else min(first, index)
    site = tape.ops[first].site if first is not None else None
    return Fidelity(first is None, compared, largest, site)


def written_views(tape: Tape) -> dict[int, dict[TensorRef, int]]:
    """Return storage -> {view an op wrote: the last op that did}, versions left out.

    What is uninitialised memory by definition is not among them.
    """
    views: dict[int, dict[TensorRef, int]] = {}
    for call in tape.ops:
        made = [] if op_traits.is_uninitialised(call.op) else outputs_of(call)
        for ref in (*made, *written_refs(call)):
            if _is_workspace(call, ref):
                continue
            views.setdefault(ref.storage, {})[replace(ref, version=0)] = call.index
    return views


def _is_workspace(call: OpCall, ref: TensorRef) -> bool:
    """Tell whether an output is bytes that a kernel keeps for its backward, in part unwritten.

    Recurrent layers and cuDNN's batch norm return such a tensor beside their results.
    """
    if ref.dtype != "uint8" or len(refs_in(call.outputs)) < 2:
        return False
    return not any(r.dtype == "uint8" for r in refs_in((call.args, call.kwargs)))


def without_memory(data: Tensor, refs: Iterable[TensorRef] = ()) -> bool:
    """Tell whether a storage cannot be read: it is a zero tensor's, or its memory was given back.

    FSDP frees gathered weights so; a view of them would allocate the script's storage again.
    """
    if data.numel() > 0 and data.data_ptr() == 0:
        return True
    return any(end_of(ref) > data.untyped_storage().nbytes() for ref in refs)


def end_of(ref: TensorRef) -> int:
    """Return the bytes that a storage must have to hold what a reference is to."""
    if 0 in ref.shape:
        return 0
    last = sum((n - 1) * s for n, s in zip(ref.shape, ref.stride, strict=True))
    return (ref.offset + last + 1) * torch_dtype(ref.dtype).itemsize


def left_in(data: Tensor, ref: TensorRef) -> Tensor:
    """Return the tensor that a reference is to, on the bytes of a storage."""
    out = torch.empty(0, dtype=torch_dtype(ref.dtype), device=data.device)
    return out.set_(data.untyped_storage(), ref.offset, ref.shape, ref.stride)


def _gap(mine: Tensor, left: Tensor) -> float | None:
    """Return the largest absolute difference, None where all bits are the same."""
    if mine.numel() == 0:
        return None
    a, b = mine.contiguous(), left.contiguous()
    if torch.equal(_bits(a), _bits(b)):
        return None
    x, y = as_real(a), as_real(b)
    differ = (x != y) & ~(torch.isnan(x) & torch.isnan(y))
    if not bool(differ.any()):
        return 0.0 if _zeros_differ(x, y) else None
    gap = torch.where(differ, (x.double() - y.double()).abs(), 0.0)
    return float(torch.nan_to_num(gap, nan=float("inf"), posinf=float("inf")).max())


def _bits(tensor: Tensor) -> Tensor:
    # A single element may have any stride, which a view of other element size does not accept.
    row = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return row.view(torch.uint8)


def _zeros_differ(x: Tensor, y: Tensor) -> bool:
    """Tell whether 0 stands against −0; nothing else but NaN is equal and has other bits."""
    return bool((torch.signbit(x) != torch.signbit(y))[~torch.isnan(x)].any())
