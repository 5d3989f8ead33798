"""One op in reference precision on the run's own inputs: what this op alone did to them.

Must not know births.
"""

from __future__ import annotations

from torch import Tensor

from fp16doctor.replay import op_traits
from fp16doctor.replay.calls import arguments, invoke, outputs_of, paired, written_pairs
from fp16doctor.replay.casting import REFUSALS, dropped
from fp16doctor.replay.environment import Formats, is_float_ref, torch_dtype
from fp16doctor.replay.player import Player
from fp16doctor.schema.policy import FP64, PrecisionPolicy
from fp16doctor.schema.tape import OpCall, TensorRef, refs_in

Results = dict[TensorRef, Tensor]

_WIDE_NAMES = ("float32", "float64", "complex64", "complex128")


def local_results(call: OpCall, run: Player, policy: PrecisionPolicy) -> Results | None:
    """Return the floating outputs of ``call`` on copies of the run's present inputs.

    In ``policy``'s formats, in fp64 where an output is fp32 itself; None where the op does not run
    in those, or reads a workspace that another op laid out for the recorded one. To be called
    before the run plays the op if the op writes in place.
    """
    if op_traits.keeps_format(call.op):
        return None
    for chosen in _policies(call, policy):
        try:
            return _run(call, run, Formats(chosen))
        except REFUSALS:
            continue
    return None


def _policies(call: OpCall, policy: PrecisionPolicy) -> list[PrecisionPolicy]:
    wide = any(r.dtype in _WIDE_NAMES for r in outputs_of(call))
    return [FP64, policy] if wide and policy is not FP64 else [policy]


def _run(call: OpCall, run: Player, formats: Formats) -> Results:
    def widened(ref: TensorRef) -> Tensor:
        return run.env.tensor(ref).to(formats.wide(torch_dtype(ref.dtype)), copy=True)

    if op_traits.is_dropout(call.op):  # the mask is the run's, known once the run has played it
        output, mask = refs_in(call.outputs)
        return {output: dropped(call, widened(call.args[0]), run.env.tensor(mask))}
    given = arguments(call, widened, formats.wide)
    found = paired(call.outputs, invoke(call, given))
    returned = {r.storage for r, _ in found}
    found += [(r, t) for r, t in written_pairs(call, given) if r.storage not in returned]
    return {r: t for r, t in found if is_float_ref(r)}
