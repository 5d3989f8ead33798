"""Plays a tape op by op under one policy.

Must not know what the values mean; ``lockstep`` compares two players.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fp16doctor.errors import ReplayError
from fp16doctor.replay import op_traits
from fp16doctor.replay.environment import Environment, ShapeDiffers, torch_dtype
from fp16doctor.schema.policy import PrecisionPolicy
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in


class Player:
    """One replay in progress."""

    def __init__(self, tape: Tape, policy: PrecisionPolicy) -> None:
        self.tape, self.policy = tape, policy
        self.env = Environment(tape, policy)
        self.pinned: dict[str, str] = {}  # op -> why its results were taken from the run
        self.n_pinned = 0
        self.scalars: dict[int, Any] = {}  # op index -> value of .item()

    def play(self, call: OpCall, partner: Player | None = None) -> None:
        """Run one op; ``partner`` is the replay as run, already past this op."""
        self.load_snapshots(call)
        if call.opaque:
            return
        if self.env.identity:
            self._run(call)
            return
        assert partner is not None
        try:
            self._run_widened(call, partner)
        except (ShapeDiffers, RuntimeError, TypeError, ValueError, IndexError, ReplayError) as e:
            self._second_try(call, partner, e)

    def load_snapshots(self, call: OpCall) -> None:
        """Take over values that something untaped wrote."""
        if not self.tape.snapshots:
            return
        for ref in refs_in((call.args, call.kwargs)):
            data = self.tape.snapshots.get((call.index, ref.storage))
            if data is not None:
                self.env.define(ref.storage, data, torch_dtype(ref.dtype), share=False)

    # -- ways to run -----------------------------------------------------------------------------

    def _run(self, call: OpCall) -> None:
        if call.rng is not None:
            restore_rng(call)
        args, kwargs = self._arguments(call, self.env.tensor)
        self._bind(call, self._invoke(call, args, kwargs), args, kwargs)

    def _run_widened(self, call: OpCall, partner: Player) -> None:
        if op_traits.is_draw(call.op):
            self._take_over(call, partner, "random")
        elif op_traits.is_dropout(call.op):
            self._dropout(call, partner)
        elif op_traits.keeps_format(call.op):
            self._run_in_recorded_format(call)
        else:
            args, kwargs = self._arguments(call, self.env.tensor)
            self._bind(call, self._invoke(call, args, kwargs), args, kwargs)

    def _second_try(self, call: OpCall, partner: Player, error: Exception) -> None:
        """Data-dependent shapes follow the run; kernels without wide formats run in their own."""
        if isinstance(error, ShapeDiffers):
            try:
                choose = _discrete_from(partner.env.tensor, self.env.tensor)
                args, kwargs = self._arguments(call, choose)
                self._bind(call, self._invoke(call, args, kwargs), args, kwargs)
                self._pin(call, "data-dependent shape: indices as in the run")
                return
            except (ShapeDiffers, RuntimeError, TypeError, ValueError, IndexError):
                pass
            self._take_over(call, partner, "data-dependent shape")
            return
        try:
            self._run_in_recorded_format(call)
            self._pin(call, "runs in its recorded format only")
        except (RuntimeError, TypeError, ValueError, IndexError, ReplayError):
            self._take_over(call, partner, f"does not run in {self.policy.name}: {_brief(error)}")

    def _run_in_recorded_format(self, call: OpCall) -> None:
        args, kwargs = self._arguments(call, self.env.recorded_form, keep_dtypes=True)
        result = self._invoke(call, args, kwargs)
        written = set(call.mutates)
        for ref, tensor in _paired((call.args, call.kwargs), (list(args), kwargs)):
            if ref.storage in written:
                self.env.tensor(ref).copy_(tensor)
        self._bind_pairs(call, _paired(call.outputs, result), set())

    def _take_over(self, call: OpCall, partner: Player, reason: str) -> None:
        """Use the run's results for this op."""
        self._pin(call, reason)
        written = set(call.mutates)
        for ref in refs_in((call.args, call.kwargs)):
            if ref.storage in written:
                self.env.tensor(ref).copy_(partner.env.tensor(ref))
        pairs = [
            (r, partner.env.tensor(r).to(self.env.wide(torch_dtype(r.dtype)), copy=True))
            for r in refs_in(call.outputs)
            if r.storage not in written
        ]
        self._bind_pairs(call, pairs, set())

    def _dropout(self, call: OpCall, partner: Player) -> None:
        refs = refs_in(call.outputs)
        mask = partner.env.tensor(refs[1]).clone()
        x, p = self.env.tensor(call.args[0]), float(call.args[1])
        scale = 0.0 if p == 1 else 1 / (1 - p)
        self._bind_pairs(call, [(refs[0], x * mask * scale), (refs[1], mask)], set())

    # -- pieces ----------------------------------------------------------------------------------

    def _invoke(self, call: OpCall, args: list[Any], kwargs: dict[str, Any]) -> Any:
        op = op_traits.resolve(call.op)
        if op_traits.wants_grad_mode(call.op):
            with torch.enable_grad():
                return op(*args, **kwargs)
        return op(*args, **kwargs)

    def _arguments(
        self, call: OpCall, tensor: Callable[[TensorRef], Tensor], *, keep_dtypes: bool = False
    ) -> tuple[list[Any], dict[str, Any]]:
        wide = _same if keep_dtypes else self.env.wide
        args = [_rebuild(a, tensor, wide) for a in call.args]
        kwargs = {k: _rebuild(v, tensor, wide) for k, v in call.kwargs.items()}
        if call.generator is not None:
            generator = torch.Generator(call.generator)
            generator.set_state(call.rng)
            args = [generator if isinstance(a, torch.Generator) else a for a in args]
            kwargs = {
                k: generator if isinstance(v, torch.Generator) else v for k, v in kwargs.items()
            }
        return args, kwargs

    def _bind(self, call: OpCall, result: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        if isinstance(result, (bool, int, float, complex)):
            self.scalars[call.index] = result
            return
        inputs = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
        self._bind_pairs(call, _paired(call.outputs, result), inputs)

    def _bind_pairs(
        self, call: OpCall, pairs: list[tuple[TensorRef, Tensor]], inputs: set[int]
    ) -> None:
        for ref, tensor in pairs:
            self.env.bind(ref, tensor, inputs)

    def _pin(self, call: OpCall, reason: str) -> None:
        self.n_pinned += 1
        self.pinned.setdefault(call.op, reason)


def restore_rng(call: OpCall) -> None:
    """Put the default generator into the state it had in front of a random op."""
    if call.generator is not None:
        return
    if call.rng.numel() > 64:  # a CPU generator's state takes 5 KB, a CUDA generator's 16 bytes
        torch.default_generator.set_state(call.rng)
    else:
        ref = next(iter(refs_in((call.args, call.kwargs, call.outputs))))
        device = torch.device(ref.device or "cuda")
        torch.cuda.default_generators[device.index or 0].set_state(call.rng)


def _rebuild(
    value: Any,
    tensor: Callable[[TensorRef], Tensor],
    wide: Callable[[torch.dtype], torch.dtype],
) -> Any:
    if isinstance(value, TensorRef):
        return tensor(value)
    if isinstance(value, (list, tuple)):
        return [_rebuild(v, tensor, wide) for v in value]
    if isinstance(value, torch.dtype):
        return wide(value)
    return value


def _same(dtype: torch.dtype) -> torch.dtype:
    return dtype


def _discrete_from(
    run: Callable[[TensorRef], Tensor], own: Callable[[TensorRef], Tensor]
) -> Callable[[TensorRef], Tensor]:
    def choose(ref: TensorRef) -> Tensor:
        discrete = not (torch_dtype(ref.dtype).is_floating_point or "complex" in ref.dtype)
        return run(ref) if discrete else own(ref)

    return choose


def _paired(recorded: Any, result: Any) -> list[tuple[TensorRef, Tensor]]:
    """Match references and tensors of two nests of the same shape."""
    if isinstance(recorded, TensorRef):
        return [(recorded, result)] if isinstance(result, Tensor) else []
    if isinstance(recorded, dict):
        return [p for k, v in recorded.items() for p in _paired(v, result[k])]
    if isinstance(recorded, (list, tuple)) and isinstance(result, (list, tuple)):
        return [p for a, b in zip(recorded, result, strict=False) for p in _paired(a, b)]
    return []


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in _tensors(v)]
    return []


def _brief(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
