"""A pole that was stored before the step: `1 − x` where x is exactly 1 in its 16-bit tensor.

0.9999 is 1 in fp16, 0.999 in bf16. Where such a number was rounded when the tensor was made, the
step has it no more, and a replay in a wider format cannot differ from the run. A tensor of zeros
and ones alone is an indicator, and a parameter is what the optimizer made of it: neither counts.

Must not know findings.
"""

from __future__ import annotations

from torch import Tensor

from fp16doctor.replay.births import BirthFacts
from fp16doctor.replay.calls import outputs_of
from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.op_traits import base
from fp16doctor.replay.values import HALF, format_name
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in
from fp16doctor.schema.trace import StoredPole

LONGEST_WAY = 12  # ops between the birth and the tensor


def stored_pole(tape: Tape, birth: BirthFacts) -> StoredPole | None:
    """Return the stored value that a birth hangs on, None where there is none or it is not known.

    Follows the operand that is 0 through ops of one tensor: roots, powers, indexing, views.
    """
    ref: TensorRef | None = _zero_operand(birth)
    before, way = birth.call.index, LONGEST_WAY
    taken_from: tuple[OpCall, float] | None = None
    while ref is not None and way:
        way -= 1
        index = producers_of(tape).last_writer(ref.storage, before)
        if index is None:
            return None if taken_from is None else _of_leaf(tape, ref, *taken_from)
        call = tape.ops[index]
        constant = _subtracted(call)
        if constant is not None and taken_from is None:
            taken_from = call, constant
        elif constant is not None or base(call.op) in ("add", "sub", "rsub"):
            return None
        ref, before = _only_operand(call), index
    return None


def _zero_operand(birth: BirthFacts) -> TensorRef | None:
    """Return the operand whose value at the birth is 0: a divisor, what a logarithm is taken of."""
    zero = [role for role, run, _ in birth.operands if run == 0]
    refs = refs_in(birth.call.args)
    places = [int(role[6:-1]) for role in zero if role.startswith("input[")]
    last = max(places, default=-1)  # of 0 / 0 the divisor
    return refs[last] if 0 <= last < len(refs) else None


def _subtracted(call: OpCall) -> float | None:
    """Return c of ``c - x`` or ``x - c``, None for 0 and for any other op."""
    numbers = [a for a in call.args[1:2] if isinstance(a, (int, float)) and not isinstance(a, bool)]
    if not numbers or base(call.op) not in ("rsub", "sub", "add"):
        return None
    constant = float(numbers[0])
    return (-constant if base(call.op) == "add" else constant) or None


def _only_operand(call: OpCall) -> TensorRef | None:
    """Return the one floating-point tensor that an op reads; None where it reads more."""
    refs = [r for r in refs_in(call.args) if torch_dtype(r.dtype).is_floating_point]
    return refs[0] if len(refs) == 1 and outputs_of(call) else None


def _of_leaf(tape: Tape, ref: TensorRef, call: OpCall, constant: float) -> StoredPole | None:
    leaf = tape.leaves.get(ref.storage)
    if leaf is None or leaf.is_parameter or ref.dtype not in HALF:
        return None
    values = leaf.data.view(torch_dtype(ref.dtype))
    if not bool((values == constant).any()) or _is_indicator(values):
        return None
    name = leaf.name if leaf.is_buffer else None
    return StoredPole(call.site, constant, format_name(torch_dtype(ref.dtype)), name)


def _is_indicator(values: Tensor) -> bool:
    return values.numel() > 1 and bool(((values == 0) | (values.abs() == 1)).all())
