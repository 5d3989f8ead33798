"""Sums whose result is far less exact than what goes into them: digits that cancelled.

a − b of nearly equal numbers keeps the rounding errors of both and loses the digits they share.
A chain of sums by one line is taken as one: what goes into the chain counts, so that a sum that
gathers term by term in 16 bits is seen as well.

An observer's part. Source of the measure: ‖as run − reference‖ / ‖reference‖ of the result, over
that of the largest operand's; Higham, Accuracy and Stability of Numerical Algorithms, section 1.7.
Must not know what the error does to a gradient.
"""

from __future__ import annotations

from fp16doctor.formats.number_format import get_format
from fp16doctor.replay import op_traits
from fp16doctor.replay.dataflow import Producers
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.player import Player
from fp16doctor.replay.values import FORMAT_NAMES, HALF, relative_error
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.precision import AmplifiedError
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

AMPLIFIED = 16.0  # times the operands' error: four bits
WRONG = 0.1  # relative error of a result from which on it is looked at
MOST = 8  # kept of one step
_SUMS = frozenset(["cumsum", "sum", "mean", "addcmul", "addcdiv"])


class Amplified:
    """What the sums of one step make of their operands' errors."""

    def __init__(self, tape: Tape, producers: Producers) -> None:
        self._tape, self._producers = tape, producers
        self._into: dict[int, tuple[object, float]] = {}  # storage -> (line, error into the chain)
        self._found: list[AmplifiedError] = []

    def made(self, call: OpCall, run: Player, reference: Player) -> None:
        """Look at one op of forward or loss that both replays have just played."""
        if call.site.phase not in (Phase.FORWARD, Phase.LOSS) or not _is_sum(call):
            return
        operands = [r for r in refs_in((call.args, call.kwargs)) if "float" in r.dtype]
        outs = [r for r in refs_in(call.outputs) if "float" in r.dtype]
        if call.mutates or not operands or not outs:
            return
        if not any(r.dtype in HALF for r in (*operands, *outs)):
            return
        errors = {r: self._error(r, run, reference) for r in operands}
        line = call.site.source or call.site.module_path, op_traits.base(call.op)
        into = max(self._before(r, e, line) for r, e in errors.items())
        self._into[outs[0].storage] = line, into
        self._judge(call, outs[0], errors, into, self._error(outs[0], run, reference))

    def _before(self, ref: TensorRef, error: float, line: object) -> float:
        known = self._into.get(ref.storage)
        return known[1] if known is not None and known[0] == line else error

    def _judge(
        self, call: OpCall, out: TensorRef, errors: dict[TensorRef, float], into: float, made: float
    ) -> None:
        narrow = next(r for r in (*errors, out) if r.dtype in HALF)
        fmt = get_format(FORMAT_NAMES[torch_dtype(narrow.dtype)])
        if made < WRONG or made < AMPLIFIED * max(into, fmt.eps / 2):
            return
        worst = max(errors, key=lambda r: errors[r])
        self._found.append(
            AmplifiedError(
                site=call.site,
                format=fmt.name,
                error=made,
                error_in=into,
                cause_site=self._maker(worst, call.index),
            )
        )

    def _maker(self, ref: TensorRef, index: int) -> OpSite | None:
        """Return the op whose rounding the operand carries, casts aside."""
        writer = self._producers.last_writer(ref.storage, index)
        return None if writer is None else self._tape.ops[writer].site

    @staticmethod
    def _error(ref: TensorRef, run: Player, reference: Player) -> float:
        if not (run.env.has(ref.storage) and reference.env.has(ref.storage)):
            return 0.0
        return relative_error(run.env.tensor(ref), reference.env.tensor(ref))

    def facts(self) -> tuple[AmplifiedError, ...]:
        """Return the worst ones, in tape order."""
        worst = sorted(self._found, key=lambda a: -a.error / max(a.error_in, 1e-9))[:MOST]
        return tuple(sorted(worst, key=lambda a: a.site.index))


def _is_sum(call: OpCall) -> bool:
    return op_traits.is_sum(call.op) or op_traits.base(call.op) in _SUMS
