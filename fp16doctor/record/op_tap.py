"""Runs one ATen call after the other, and has each recorded.

The part of the recorder that every op of the script goes through: each microsecond here counts.
Must not know what a step is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fp16doctor.record import op_writer
from fp16doctor.record.bounds import MAX_IDLE_OPS, WEIGH_EVERY
from fp16doctor.record.op_info import OpInfo, op_info
from fp16doctor.record.roll import Raised, RawOp
from fp16doctor.record.whereabouts import Whereabouts

if TYPE_CHECKING:
    from fp16doctor.record.recorder import Recorder


class OpTap:
    """``call`` is what the dispatch mode calls."""

    def __init__(self, recorder: Recorder, where: Whereabouts) -> None:
        self._recorder, self._where = recorder, where
        self.ops_by_dtype: dict[torch.dtype, int] = {}

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen call and record it; a fault of ours is noted, and the call made."""
        info, recorder = op_info(func), self._recorder
        if info.skip or recorder.deaf:
            return func(*args, **kwargs)
        op = None
        try:
            op = self._before(info, args, kwargs)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the script
            recorder.broken(error)
        try:
            out = func(*args, **kwargs)
        except BaseException as error:
            if op is not None:
                roll = recorder.roll
                recorder.last_raise = Raised(error, op, roll.step, len(roll.ops))
            raise
        if op is not None and not recorder.deaf:
            try:
                self._after(op, args, kwargs, out)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the script
                recorder.broken(error)
        return out

    def _before(self, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RawOp | None:
        recorder = self._recorder
        where = self._where.now(only_if_built=info.alias)
        if recorder.roll.fresh > WEIGH_EVERY and recorder.bounds.too_heavy_outside_steps():
            recorder.new_step(None)
        if info.alias or where is None:
            if args and isinstance(args[0], Tensor) and not recorder.bounds.truncated:
                recorder.roll.touch(args[0])
            return None
        if len(recorder.roll.ops) >= MAX_IDLE_OPS and recorder.bounds.too_long_outside_steps():
            recorder.new_step(None)
        if recorder.bounds.truncated:
            if info.noted:
                recorder.book.note(recorder, info, args, None)
            return None
        op = op_writer.begin(recorder.roll, info, args, kwargs, where)
        if op.written:
            if not all(map(recorder.roll.protect, op.written)):
                recorder.bounds.copies_ran_out()
                return None
            recorder.book.written(recorder, op.written)
            recorder.usage.written(op, args)
        if info.noted:
            recorder.book.note(recorder, info, args, op.args[0])
        recorder.usage.before(op)
        return op

    def _after(self, op: RawOp, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        dtype = op_writer.finish(self._recorder.roll, op, args, kwargs, out)
        if dtype is not None and dtype.is_floating_point:
            self.ops_by_dtype[dtype] = self.ops_by_dtype.get(dtype, 0) + 1
