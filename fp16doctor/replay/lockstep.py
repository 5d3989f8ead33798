"""Two replays side by side: as run, and the reference; every birth is caught and classified.

Must not know severities or words.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fp16doctor.errors import ReplayError
from fp16doctor.formats.number_format import get_format
from fp16doctor.replay import op_traits
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.player import Player, _rebuild
from fp16doctor.replay.values import (
    FORMAT_NAMES,
    amax,
    as_real,
    at,
    is_float,
    nonfinite_code,
    unravel,
)
from fp16doctor.schema.policy import AS_RUN, PrecisionPolicy
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in
from fp16doctor.schema.trace import EventKind


@dataclass(slots=True)
class BirthFacts:
    """What was measured at one birth; kinds that need the end of the step are settled later."""

    call: OpCall
    ref: TensorRef  # the output that is non-finite
    format: str
    kind: EventKind
    shared: bool  # the reference run is non-finite there as well
    nan_from_inf: bool  # an input already held an inf
    constant_source: bool  # the inf comes from an infinite constant in the call
    n_inf: int
    n_nan: int
    total: int
    element: tuple[int, ...]
    exact: float | None
    reference: float | None
    reference_amax: float | None
    operands: tuple[tuple[str, float, float], ...]
    integer_operand: bool
    constant: float | None


@dataclass(slots=True)
class LockstepResult:
    """Everything later passes need."""

    run: Player
    reference: Player | None
    births: list[BirthFacts] = field(default_factory=list)
    codes: dict[int, dict[int, int]] = field(default_factory=dict)  # op -> storage -> code
    tainted_inputs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    losses: list[tuple[float, float | None]] = field(default_factory=list)
    scalars_differ: int = 0


class Observer:
    """Called in front of ops and at the end; sees both players."""

    def before(self, index: int, run: Player, reference: Player | None) -> None:
        """In front of op ``index`` (or at the end: index == number of ops)."""

    def after(self, call: OpCall, run: Player, reference: Player | None) -> None:
        """Behind an op."""


def lockstep(
    tape: Tape, policy: PrecisionPolicy | None, observers: tuple[Observer, ...] = ()
) -> LockstepResult:
    """Replay as run, and under ``policy`` beside it where one is given.

    Raises ReplayError where the tape as run cannot be played. The caller holds the random state.
    """
    run = Player(tape, AS_RUN)
    reference = Player(tape, policy) if policy is not None else None
    result = LockstepResult(run, reference)
    last = last_uses(tape)
    for call in tape.ops:
        for observer in observers:
            observer.before(call.index, run, reference)
        _read_losses(tape, call.index, result)
        birth = _Birth(call, result) if call.nonfinite and not call.opaque else None
        try:
            run.play(call)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise ReplayError(
                f"{call.op} at {call.index} failed: {error}", "replay-failed"
            ) from error
        if reference is not None:
            reference.play(call, run)
            _compare_scalar(call, result)
        if birth is not None:
            birth.judge()
        for observer in observers:
            observer.after(call, run, reference)
        for number in last.get(call.index, ()):
            run.env.drop(number)
            if reference is not None:
                reference.env.drop(number)
    _read_losses(tape, len(tape.ops), result)
    for observer in observers:
        observer.before(len(tape.ops), run, reference)
    return result


def last_uses(tape: Tape) -> dict[int, list[int]]:
    """Return op index -> storages nothing needs afterwards."""
    last: dict[int, int] = {}
    for call in tape.ops:
        for ref in refs_in((call.args, call.kwargs, call.outputs)):
            last[ref.storage] = call.index
    kept = (
        set(tape.final)
        | set(tape.gradients)
        | {n for n, leaf in tape.leaves.items() if leaf.is_parameter or leaf.is_buffer}
    )
    kept |= {m.ref.storage for m in tape.losses}
    out: dict[int, list[int]] = {}
    for number, index in last.items():
        if number not in kept:
            out.setdefault(index, []).append(number)
    return out


def _read_losses(tape: Tape, index: int, result: LockstepResult) -> None:
    for mark in tape.losses:
        if mark.index == index and result.run.env.has(mark.ref.storage):
            mine = float(result.run.env.tensor(mark.ref))
            other = None
            if result.reference is not None:
                other = float(result.reference.env.tensor(mark.ref))
            result.losses.append((mine, other))


def _compare_scalar(call: OpCall, result: LockstepResult) -> None:
    mine = result.run.scalars.get(call.index)
    if mine is None or result.reference is None:
        return
    other = result.reference.scalars.get(call.index, mine)
    if isinstance(mine, float) and isinstance(other, float):
        close = abs(mine - other) <= 0.01 * max(abs(mine), abs(other))
        result.scalars_differ += not (close or mine == other)
    else:
        result.scalars_differ += mine != other


class _Birth:
    """Looks at one flagged op before and after it runs."""

    def __init__(self, call: OpCall, result: LockstepResult) -> None:
        self._call, self._result = call, result
        self._run, self._reference = result.run, result.reference
        self._run.load_snapshots(call)
        self._reads = _read_refs(call)
        codes: dict[int, int] = {}
        for ref in self._reads:
            if self._run.env.has(ref.storage):
                codes[ref.storage] = max(
                    nonfinite_code(self._run.env.tensor(ref)), codes.get(ref.storage, 0)
                )
        self._input_code = max(codes.values(), default=0)
        result.tainted_inputs[call.index] = tuple(n for n, c in codes.items() if c)
        self._local = self._local_result() if self._input_code < 2 else None
        self._before = self._operand_values() if self._input_code < 2 else []

    def judge(self) -> None:
        """Classify after both players ran the op."""
        outputs = self._outputs()
        codes = {r.storage: nonfinite_code(self._run.env.tensor(r)) for r in outputs}
        self._result.codes[self._call.index] = codes
        worst = max(codes.values(), default=0)
        if worst <= self._input_code or self._reference is None:
            return
        for place, ref in enumerate(outputs):
            if codes[ref.storage] > self._input_code:
                self._result.births.append(self._facts(place, ref))
                return

    def _outputs(self) -> list[TensorRef]:
        written = set(self._call.mutates)
        refs = refs_in(self._call.outputs)
        seen = {r.storage for r in refs}
        refs += [
            r
            for r in refs_in((self._call.args, self._call.kwargs))
            if r.storage in written and r.storage not in seen
        ]
        return [r for r in refs if torch_dtype(r.dtype).is_floating_point or "complex" in r.dtype]

    def _operand_values(self) -> list[tuple[str, TensorRef, Tensor, Tensor | None]]:
        values = []
        for place, value in enumerate(self._call.args):
            if isinstance(value, TensorRef) and value in self._reads:
                mine = self._run.env.tensor(value)
                other = None
                if self._reference is not None and self._reference.env.has(value.storage):
                    other = self._reference.env.tensor(value).clone()
                if is_float(mine) and not mine.is_complex():
                    values.append((f"input[{place}]", value, mine.clone(), other))
        return values

    def _local_result(self) -> list[Tensor] | None:
        """Return the op's outputs in reference precision on the run's own inputs."""
        if self._reference is None or op_traits.is_draw(self._call.op):
            return None
        return local_result(self._call, self._run, self._reference)

    def _facts(self, place: int, ref: TensorRef) -> BirthFacts:
        mine = as_real(self._run.env.tensor(ref)).detach()
        assert self._reference is not None
        other = as_real(self._reference.env.tensor(ref))
        local = self._local_at(place, mine)
        bad = ~torch.isfinite(mine)
        flat = _worst_element(bad, local)
        element = unravel(flat, tuple(mine.shape))
        exact = None if local is None else float(local.reshape(-1)[flat])
        reference = float(other.reshape(-1)[flat])
        fmt = FORMAT_NAMES.get(torch_dtype(ref.dtype), "fp32")
        shared = bool((bad & ~torch.isfinite(other)).any())
        call = self._call
        return BirthFacts(
            call=call,
            ref=ref,
            format=fmt,
            kind=_kind(exact, fmt),
            shared=shared and not _finite(reference),
            nan_from_inf=self._input_code == 1,
            constant_source=_has_infinite_constant(call),
            n_inf=int(torch.isinf(mine).sum()),
            n_nan=int(torch.isnan(mine).sum()),
            total=mine.numel(),
            element=element,
            exact=exact,
            reference=reference,
            reference_amax=amax(other),
            operands=self._operands(element, tuple(mine.shape)),
            integer_operand=not any(torch_dtype(r.dtype).is_floating_point for r in self._reads),
            constant=_constant_beyond(call, fmt),
        )

    def _local_at(self, place: int, mine: Tensor) -> Tensor | None:
        if self._local is None or place >= len(self._local):
            return None
        local = as_real(self._local[place])
        return local if local.shape == mine.shape else None

    def _operands(
        self, element: tuple[int, ...], shape: tuple[int, ...]
    ) -> tuple[tuple[str, float, float], ...]:
        found = []
        for role, _, mine, other in self._before:
            a = at(mine, element, shape)
            b = at(other, element, shape) if other is not None else None
            if a is not None and b is not None:
                found.append((role, a, b))
        return tuple(found)


def local_result(call: OpCall, run: Player, reference: Player) -> list[Tensor] | None:
    """Run ``call`` in the reference's formats on copies of the run's present inputs.

    Returns the floating outputs in the order of the recorded ones, written arguments last;
    None where the op does not run in those formats.
    """

    def widened(ref: TensorRef) -> Tensor:
        value = run.env.tensor(ref)
        return value.to(reference.env.wide(value.dtype), copy=True)

    args = [_rebuild(a, widened, reference.env.wide) for a in call.args]
    kwargs = {k: _rebuild(v, widened, reference.env.wide) for k, v in call.kwargs.items()}
    try:
        result = op_traits.resolve(call.op)(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError, ReplayError):
        return None
    outs = [t for t in _flat(result) if is_float(t)]
    if outs:
        return outs
    written = set(call.mutates)
    return [
        t
        for r, t in zip(refs_in(call.args), _flat(args), strict=False)
        if r.storage in written and is_float(t)
    ]


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for v in value for t in _flat(v)] if isinstance(value, (list, tuple)) else []


def _read_refs(call: OpCall) -> list[TensorRef]:
    """Return the floating inputs whose values the op reads."""
    refs = refs_in((call.args, call.kwargs))
    if op_traits.overwrites(call.op):
        written = set(call.mutates)
        refs = [r for r in refs if r.storage not in written]
    return [r for r in refs if torch_dtype(r.dtype).is_floating_point or "complex" in r.dtype]


def _worst_element(bad: Tensor, local: Tensor | None) -> int:
    """Return the flat index of the largest exact magnitude among the non-finite elements."""
    candidates = bad.reshape(-1)
    if local is not None:
        size = local.reshape(-1).double().abs()
        finite = candidates & torch.isfinite(size)
        if bool(finite.any()):
            return int(torch.where(finite, size, torch.full_like(size, -1.0)).argmax())
    return int(candidates.to(torch.uint8).argmax())


def _kind(exact: float | None, fmt: str) -> EventKind:
    if exact is None:
        return EventKind.UNKNOWN
    if not _finite(exact):
        return EventKind.BOUNDARY  # or intended, or logic: settled at the end of the step
    if abs(exact) >= get_format(fmt).overflow_threshold:
        return EventKind.OVERFLOW
    return EventKind.INTERNAL_OVERFLOW


def _finite(x: float | None) -> bool:
    return x is not None and x - x == 0


def _numbers(value: Any) -> list[float]:
    if isinstance(value, bool):
        return []
    if isinstance(value, (int, float)):
        return [float(value)]
    if isinstance(value, dict):
        value = list(value.values())
    return [n for v in value for n in _numbers(v)] if isinstance(value, (list, tuple)) else []


def _has_infinite_constant(call: OpCall) -> bool:
    return any(n in (float("inf"), float("-inf")) for n in _numbers((call.args, call.kwargs)))


# Ops that put a Python scalar into a tensor, or add it to one.
_TAKE_CONSTANTS = frozenset(
    (
        "add",
        "add_",
        "fill_",
        "full",
        "full_like",
        "masked_fill",
        "masked_fill_",
        "mul",
        "scalar_tensor",
        "sub",
        "where",
    )
)


def _constant_beyond(call: OpCall, fmt: str) -> float | None:
    """Return a finite Python scalar among the arguments that the format cannot hold."""
    if op_traits.base(call.op) not in _TAKE_CONSTANTS:
        return None
    limit = get_format(fmt).overflow_threshold
    return next(
        (n for n in _numbers((call.args, call.kwargs)) if _finite(n) and abs(n) >= limit), None
    )
