"""Examine one tape: replay as run and in the reference, and say what was born and where it went.

Must not know rules; the result is facts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from fp16doctor.replay import fidelity
from fp16doctor.replay.events import EventMaker
from fp16doctor.replay.layers import LayerObserver
from fp16doctor.replay.lockstep import LockstepResult, lockstep
from fp16doctor.replay.poison import PoisonObserver, poisons
from fp16doctor.replay.precision import PrecisionObserver
from fp16doctor.replay.sinks import SinkObserver
from fp16doctor.replay.update_ledger import UpdateLedger
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.policy import FP32, FP64, PrecisionPolicy
from fp16doctor.schema.tape import Tape
from fp16doctor.schema.trace import EventKind, ReplayTrace

SUSPICIOUS_SHARE = 0.01  # of a gradient's Σ|x|: more than this lost is looked at in fp64


def examine(tape: Tape, *, with_reference: bool, ledger: UpdateLedger | None = None) -> ReplayTrace:
    """Return what replaying ``tape`` shows; without reference only the fidelity is measured.

    Updates of stored 16-bit tensors are booked in ``ledger``, which sums them over steps.

    Raises ReplayError where the tape as run cannot be played. Gradient mode and autocast must be
    off; the random state is left as it was.
    """
    started = time.perf_counter()
    with random_state_kept():
        if not with_reference:
            trace = _faithful_only(tape)
        else:
            examination = _Examination(tape, FP32)
            trace = examination.trace()
            if ledger is not None and all(e.harmless for e in trace.events):
                examination.precision.updates.commit(ledger)
            if examination.own_format or _needs_fp64(trace):
                wider = _Examination(tape, FP64).trace()
                trace = _with_noise(trace, wider)
    return replace(trace, seconds=time.perf_counter() - started)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Put every default generator back into its state."""
    cpu = torch.default_generator.get_state()
    used = torch.cuda.is_initialized()
    cuda = [g.get_state() for g in torch.cuda.default_generators] if used else []
    try:
        yield
    finally:
        torch.default_generator.set_state(cpu)
        for generator, state in zip(
            torch.cuda.default_generators if used else (), cuda, strict=True
        ):
            generator.set_state(state)


def _faithful_only(tape: Tape) -> ReplayTrace:
    result = lockstep(tape, None)
    return ReplayTrace(
        step=tape.step,
        reference="none",
        events=(),
        sinks=(),
        fidelity=fidelity.compare(tape, result.run),
        n_ops=len(tape.ops),
        opaque=_opaque(tape),
        loss=sum(a for a, _ in result.losses) if result.losses else None,
        complete=tape.complete,
    )


def _needs_fp64(trace: ReplayTrace) -> bool:
    """Tell whether fp32 shows something that must hold in fp64 too: logic, a lost gradient."""
    if any(e.kind is EventKind.LOGIC for e in trace.events):
        return True
    gradients = trace.precision.gradients if trace.precision else ()
    return any(g.lost_mass > SUSPICIOUS_SHARE * g.mass for g in gradients)


def _with_noise(fp32: ReplayTrace, fp64: ReplayTrace) -> ReplayTrace:
    """Return the fp64 trace; each gradient says how far the two references are apart.

    A gradient that is zero in exact arithmetic is rounding noise in fp32 and far smaller in fp64.
    """
    if fp32.precision is None or fp64.precision is None:
        return fp64
    masses = {g.name: g.mass for g in fp32.precision.gradients}
    gradients = tuple(
        replace(g, noise=_apart(masses.get(g.name), g.mass)) for g in fp64.precision.gradients
    )
    return replace(fp64, precision=replace(fp64.precision, gradients=gradients))


def _apart(a: float | None, b: float) -> float | None:
    largest = max(a or 0.0, b)
    return None if a is None or largest == 0 else abs(a - b) / largest


class _Examination:
    """One lockstep run and what follows from it."""

    def __init__(self, tape: Tape, policy: PrecisionPolicy) -> None:
        self._tape, self._policy = tape, policy
        self._sinks = SinkObserver(tape)
        self.precision = PrecisionObserver(tape)
        self._poison = PoisonObserver(tape)
        self._layers = LayerObserver(tape)
        observers = (self._sinks, self.precision, self._poison, self._layers)
        self._result: LockstepResult = lockstep(tape, policy, observers)
        self._states = self._sinks.states(self._result)

    @property
    def own_format(self) -> bool:
        """Something was born in fp32 itself, which cannot be its own reference.

        A constant −inf, a mask, needs no second opinion.
        """
        return any(b.format == "fp32" and not b.constant_source for b in self._result.births)

    def trace(self) -> ReplayTrace:
        result = self._result
        assert result.reference is not None
        maker = EventMaker(self._tape, self._policy, result, self._sinks, self._states)
        return ReplayTrace(
            step=self._tape.step,
            reference=self._policy.name,
            events=tuple(maker.events()),
            sinks=self._states,
            fidelity=fidelity.compare(self._tape, result.run),
            n_ops=len(self._tape.ops),
            pinned=tuple(sorted(result.reference.pinned.items())),
            opaque=_opaque(self._tape),
            loss=sum(a for a, _ in result.losses) if result.losses else None,
            loss_reference=sum(b or 0.0 for _, b in result.losses) if result.losses else None,
            scalars_differ=result.scalars_differ,
            precision=self.precision.facts(),
            complete=self._tape.complete,
            poisons=tuple(poisons(self._tape, self._poison.given, maker.tracer)),
            layers=tuple(self._layers.gains),
            update_site=_update_site(self._tape),
        )


def _update_site(tape: Tape) -> OpSite | None:
    at = tape.optimizer_at
    return tape.ops[at].site if at is not None and at < len(tape.ops) else None


def _opaque(tape: Tape) -> tuple[tuple[str, str], ...]:
    found = {c.op: "no plain tensors" for c in tape.ops if c.opaque}
    for index, _ in tape.snapshots:
        call = tape.ops[index]
        found.setdefault(call.op, "its input was made elsewhere (another process or library)")
    return tuple(sorted(found.items()))
