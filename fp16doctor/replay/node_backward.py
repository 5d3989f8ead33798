"""Which ops of backward belong to one op of forward, and which one makes its operand's gradient.

The tape does not say so. The ops that torch's formulas are made of (``derivatives.yaml``) are
looked for on the line of the forward op, each reading what the one before it made, the first the
operand or the result that was saved. Where they are not there as known, nothing is said.

Must not know why it is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fp16doctor.replay.op_traits import base
from fp16doctor.schema.location import Phase
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

# Forward op -> the ops from what it saved of its operand to the operand's gradient.
_OF_OPERAND = {
    "log": ("div",),
    "log2": ("mul", "div"),
    "log10": ("mul", "div"),
    "log1p": ("add", "div"),
    "logsumexp": ("sub", "exp", "mul"),
    "acos": ("neg", "mul", "add", "rsqrt", "neg", "mul"),
    "asin": ("neg", "mul", "add", "rsqrt", "mul"),
    "pow": ("pow", "mul", "mul"),
    "div": ("div", "div", "mul"),  # of the divisor: −g · (x / d) / d
}
# The same from the result, where that is what was saved.
_OF_RESULT = {"sqrt": ("mul", "div"), "rsqrt": ("pow", "mul"), "reciprocal": ("mul", "mul")}


@dataclass(frozen=True, slots=True)
class NodeBackward:
    """The backward ops of one forward op that have to do with one operand."""

    ops: frozenset[int]  # that read the operand, or come from it, up to its gradient
    gradient: int | None  # the one that makes the operand's gradient; None: it has none


def of_operand(tape: Tape, call: OpCall, place: int) -> NodeBackward | None:
    """Return the backward of ``call`` for its argument ``place``; None where it is not clear."""
    name, x = base(call.op), call.args[place]
    steps, start = _OF_OPERAND.get(name), x
    if steps is None:
        steps, start = _OF_RESULT.get(name), _result(call)
    if steps is None or start is None:
        return None
    behind = [c for c in tape.ops[call.index + 1 :] if _is_there(c, call)]
    if name == "div":
        return _of_divisor(behind, call, x)
    chain = _chain(behind, start, steps)
    if chain is None:
        clear = not any(base(c.op) == steps[0] and reads_operand(c, start) for c in behind)
        return NodeBackward(frozenset(), None) if clear else None
    return NodeBackward(frozenset(chain), chain[-1])


def reads_operand(call: OpCall, ref: TensorRef) -> bool:
    """Tell whether an op reads the same elements."""
    return any(_same(r, ref) for r in refs_in((call.args, call.kwargs)))


def _is_there(later: OpCall, call: OpCall) -> bool:
    return later.site.phase is Phase.BACKWARD and later.site.source == call.site.source


def _of_divisor(behind: list[OpCall], call: OpCall, divisor: TensorRef) -> NodeBackward | None:
    """Every division by the divisor on the line is the node's own."""
    divides = [c for c in behind if base(c.op) == "div" and _same(c.args[1], divisor)]
    own = frozenset(c.index for c in divides)
    first = [c for c in divides if _same(c.args[0], call.args[0])]
    if not first:
        numbers = isinstance(call.args[0], TensorRef)
        return NodeBackward(own, None) if numbers and len(divides) <= 1 else None
    chain = _chain(behind, divisor, _OF_OPERAND["div"], first[0])
    if chain is None:
        return None
    made = next(c for c in behind if c.index == chain[-1])
    if _result(made) is not None and _shape(made) != divisor.shape:
        summed = [c for c in behind if base(c.op) == "sum" and reads_operand(c, made.outputs)]
        if len(summed) != 1 or _shape(summed[0]) != divisor.shape:
            return None
        chain.append(summed[0].index)
    return NodeBackward(own | set(chain), chain[-1])


def _chain(
    behind: list[OpCall], start: TensorRef, steps: tuple[str, ...], first: OpCall | None = None
) -> list[int] | None:
    """Return the ops of the given names, each the next that reads what the one before made."""
    found: list[int] = []
    read = start
    for number, name in enumerate(steps):
        later = (c for c in behind if not found or c.index > found[-1])
        fits = (c for c in later if base(c.op) == name and _takes(c, read, twice=first is not None))
        call = first if number == 0 and first is not None else next(fits, None)
        made = None if call is None else _result(call)
        if call is None or made is None:
            return None
        found.append(call.index)
        read = made
    return found


def _takes(call: OpCall, ref: TensorRef, *, twice: bool) -> bool:
    """A gradient is divided by what was saved; ``twice``: a quotient is divided once more."""
    if base(call.op) == "div":
        return _same(call.args[0 if twice else 1], ref)
    return reads_operand(call, ref)


def _result(call: OpCall) -> TensorRef | None:
    refs = refs_in(call.outputs)
    return refs[0] if len(refs) == 1 else None


def _shape(call: OpCall) -> tuple[int, ...]:
    return refs_in(call.outputs)[0].shape


def _same(value: object, ref: TensorRef) -> bool:
    return isinstance(value, TensorRef) and replace(value, version=ref.version) == ref
