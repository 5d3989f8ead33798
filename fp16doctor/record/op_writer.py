"""Writes one call into the rolling tape: references in front of it, outputs and screen behind.

Must not know steps or places.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fp16doctor.record.op_info import OpInfo
from fp16doctor.record.ranks import ALONE, joined
from fp16doctor.record.roll import RawOp, Roll, numbers
from fp16doctor.record.whereabouts import Where

# Kept as they are; anything else that is no tensor may not outlive the call.
_PRIMITIVES: tuple[type, ...] = (
    *(int, float, complex, str, torch.SymInt, torch.SymFloat, torch.SymBool),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.qscheme),
    torch.Generator,
)


def begin(
    roll: Roll, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], where: Where
) -> RawOp:
    """Return the record of a call that is about to run."""
    roll.held = False
    if info.overwrites and roll.unseen:
        for tensor in _tensors(_written(info, args, kwargs)):
            roll.overwritten(tensor)
    refs = [roll.read(a) if isinstance(a, Tensor) else _encode(roll, a) for a in args]
    named = {k: _encode(roll, v) for k, v in kwargs.items()} if kwargs else kwargs
    if info.opaque and info.name.startswith("c10d."):
        named = {**named, "ranks": (joined() or ALONE)[1]}  # the group itself cannot be kept
    op = RawOp(info, refs, named, where)
    if info.writes:
        op.written = tuple(dict.fromkeys(numbers(_written(info, refs, named))))
    if info.random:
        op.rng, op.generator_key = _random_state(args, kwargs)
    return op


def finish(
    roll: Roll, op: RawOp, args: Any, kwargs: dict[str, Any], out: Any
) -> torch.dtype | None:
    """Complete and append the record of a call that ran; look for inf and NaN in its results.

    Returns the format of its first result, None where that is no tensor.
    """
    info, first = op.info, out
    if isinstance(out, Tensor):  # nearly always
        known = len(roll.ids)
        op.outputs = ref = roll.made(out)
        if not info.uninitialised:
            _screen_result(roll, op, out, ref, fresh=len(roll.ids) > known)
    elif isinstance(out, (list, tuple)):
        op.outputs = [_output(roll, op, v) for v in out]
        first = out[0] if out else None
    else:
        op.outputs = out
    if info.uninitialised:
        _mark_unseen(roll, op, out)
    if op.written:
        if roll.unseen:
            roll.unseen.difference_update(op.written)
        if out is None:
            _screen_written(roll, op, args, kwargs)
    if roll.held or info.opaque:
        roll.unknown(op)
    roll.ops.append(op)
    return first.dtype if isinstance(first, Tensor) else None


def _screen_result(roll: Roll, op: RawOp, out: Tensor, ref: Any, *, fresh: bool) -> None:
    """Look at the only result, unless it is finite because all that was read is."""
    if not op.info.keeps_finite or not roll.clean.issuperset(numbers(op.args)):
        roll.screen(op, out, ref)
    if fresh and not op.code and out.is_cpu:
        roll.clean.add(ref[0])


def _encode(roll: Roll, value: Any) -> Any:
    """Return ``value`` with its tensors replaced by references."""
    if value is None or isinstance(value, _PRIMITIVES):
        return value
    if isinstance(value, Tensor):
        return roll.read(value)
    if isinstance(value, (list, tuple)):
        return [_encode(roll, v) for v in value]
    return roll.hold(value)


def _output(roll: Roll, op: RawOp, value: Any) -> Any:
    if isinstance(value, Tensor):
        ref = roll.made(value)
        if not op.info.uninitialised:
            roll.screen(op, value, ref)
        return ref
    if isinstance(value, (list, tuple)):
        return [_output(roll, op, v) for v in value]
    return value if value is None or isinstance(value, _PRIMITIVES) else roll.hold(value)


def _mark_unseen(roll: Roll, op: RawOp, out: Any) -> None:
    """What was just allocated holds whatever was in memory, until something writes to it."""
    if isinstance(out, Tensor) and out.numel() and type(op.outputs) is tuple:
        roll.unseen.add(op.outputs[0])
        roll.clean.discard(op.outputs[0])


def _written(info: OpInfo, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    values = [args[i] for i in info.written_args if i < len(args)]
    if info.written_kwargs:
        values += [kwargs[k] for k in info.written_kwargs if k in kwargs]
    return values


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []


def _screen_written(roll: Roll, op: RawOp, args: Any, kwargs: dict[str, Any]) -> None:
    """Look at what an op wrote in place without returning it: foreach and fused ops."""
    for tensor in _tensors(_written(op.info, args, kwargs)):
        roll.screen(op, tensor, roll.made(tensor))


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
