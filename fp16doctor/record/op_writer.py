"""Writes one call into the rolling tape: references in front of it, outputs and screen behind.

Must not know steps or places.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fp16doctor.record.op_info import OpInfo
from fp16doctor.record.roll import RawOp, Roll
from fp16doctor.record.whereabouts import Where

Pairs = list[tuple[Tensor, Any]]


def written_tensors(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that a call writes in place."""
    if not info.written_args and not info.written_kwargs:
        return []
    values = [args[i] for i in info.written_args if i < len(args)]
    values += [kwargs[k] for k in info.written_kwargs if k in kwargs]
    flat: list[Any] = []
    for v in values:
        flat.extend(v if isinstance(v, (list, tuple)) else [v])
    return [t for t in flat if isinstance(t, Tensor)]


def begin(
    roll: Roll,
    func: Any,
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    where: Where,
    written: list[Tensor],
) -> RawOp:
    """Return the record of a call that is about to run."""
    roll.held = False
    if info.overwrites:
        for tensor in written:
            roll.overwritten(tensor)
    refs = [encode(roll, a) for a in args]
    named = {k: encode(roll, v) for k, v in kwargs.items()} if kwargs else {}
    op = RawOp(func, info, refs, named, None, where, None, None, ())
    if roll.bad:
        op.reads_bad = _worst_read(roll, refs)
    if info.random:
        op.rng, op.generator_key = _random_state(args, kwargs)
    return op


def finish(roll: Roll, op: RawOp, args: Any, kwargs: dict[str, Any], out: Any) -> Pairs:
    """Complete and append the record of a call that ran; return its floating outputs."""
    info = op.info
    pairs: Pairs = []
    op.outputs = _encode_outputs(roll, out, info.uninitialised, pairs)
    if op.written:
        roll.written(op.written)
    if roll.held or info.higher_order:
        roll.unknown(op)
    if op.written and (out is None or not pairs):
        for a in (*args, *kwargs.values()):
            _collect_written(roll, a, op.written, pairs)
    if info.screened and pairs:
        roll.screen(op, pairs)
    roll.ops.append(op)
    return pairs


def encode(roll: Roll, value: Any) -> Any:
    """Return ``value`` with its tensors replaced by references."""
    if isinstance(value, Tensor):
        return roll.read(value)
    if isinstance(value, (list, tuple)):
        return [encode(roll, v) for v in value]
    return value


def _encode_outputs(roll: Roll, value: Any, uninitialised: bool, pairs: Pairs) -> Any:
    if isinstance(value, Tensor):
        ref = roll.made(value, uninitialised=uninitialised)
        if value.dtype.is_floating_point or value.dtype.is_complex:
            pairs.append((value, ref))
        return ref
    if isinstance(value, (list, tuple)):
        return [_encode_outputs(roll, v, uninitialised, pairs) for v in value]
    return value


def _collect_written(roll: Roll, value: Any, written: tuple[int, ...], pairs: Pairs) -> None:
    if isinstance(value, Tensor):
        ref = roll.read(value)
        if type(ref) is tuple and ref[0] in written and value.dtype.is_floating_point:
            pairs.append((value, ref))
    elif isinstance(value, (list, tuple)):
        for v in value:
            _collect_written(roll, v, written, pairs)


def _worst_read(roll: Roll, refs: list[Any]) -> int:
    bad, worst, stack = roll.bad, 0, list(refs)
    while stack:
        ref = stack.pop()
        if type(ref) is tuple:
            worst = max(worst, bad.get(ref[0], 0))
        elif type(ref) is list:
            stack.extend(ref)
    return worst


def _random_state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, str | None]:
    """Return (generator state, device of an explicit generator) in front of a random op."""
    generator = kwargs.get("generator")
    if generator is None:
        generator = next((a for a in args if isinstance(a, torch.Generator)), None)
    if generator is not None:
        return generator.get_state(), str(generator.device)
    tensor = next((a for a in args if isinstance(a, Tensor)), None)
    device = tensor.device if tensor is not None else torch.device(kwargs.get("device") or "cpu")
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index].get_state(), None
    return torch.default_generator.get_state(), None
