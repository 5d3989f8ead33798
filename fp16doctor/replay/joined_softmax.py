"""A step as it would run if a softmax and its logarithm were one ``log_softmax``.

log(softmax(x)) is x − log Σ exp(x): the probability, which 16 bits may round to 0, is never formed.
Its derivative with respect to x is g − softmax(x) Σ g (``aten._log_softmax_backward_data``), so the
division by the probability goes as well.

Must not know whether the change is any better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.op_traits import base
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

_SOFTMAX, _SOFTMAX_BACKWARD = "_softmax", "_softmax_backward_data"
# Hand on values as they are, so that logarithms may pass instead.
_SELECT = frozenset(
    ("_to_copy", "clone", "contiguous", "detach", "gather", "index", "index_select", "select",
     "slice", "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "permute",
     "transpose", "t", "alias", "unbind", "split", "narrow")
)  # fmt: skip


@dataclass(slots=True)
class SoftmaxThenLog:
    """One softmax all of whose values go into logarithms, and these."""

    softmax: OpSite
    logs: list[OpSite] = field(default_factory=list)


def softmaxes_then_logs(tape: Tape) -> tuple[SoftmaxThenLog, ...]:
    """Return each softmax of forward that is read for its logarithm alone."""
    return tuple(f.pair for f in _found(tape))


def joined(tape: Tape, site: OpSite) -> Tape | None:
    """Return the step with every softmax at ``site``'s line as a log_softmax; None without any."""
    found = [f for f in _found(tape) if f.pair.softmax.source == site.source]
    if not found:
        return None
    changed = {c.index: c for f in found for c in f.edited}
    return replace(tape, ops=tuple(changed.get(c.index, c) for c in tape.ops))


@dataclass(slots=True)
class _Chain:
    """Storages that hold a softmax or a part of it, and the ops that change."""

    pair: SoftmaxThenLog
    holds: set[int]
    edited: list[OpCall]
    spoilt: bool = False


def _found(tape: Tape) -> Iterator[_Chain]:
    chains: dict[int, _Chain] = {}  # storage -> the chain that it belongs to
    every = []
    for call in tape.ops:
        if base(call.op) == _SOFTMAX and call.site.phase in (Phase.FORWARD, Phase.LOSS):
            chain = _Chain(SoftmaxThenLog(call.site), set(), [_renamed(call, _SOFTMAX)])
            every.append(chain)
            _hold(chains, chain, call)
            continue
        for chain in {id(c): c for r in _given(call) if (c := chains.get(r.storage))}.values():
            _follow(chains, chain, call)
    return (c for c in every if c.pair.logs and not c.spoilt)


def _hold(chains: dict[int, _Chain], chain: _Chain, call: OpCall) -> None:
    for ref in refs_in(call.outputs):
        chain.holds.add(ref.storage)
        chains[ref.storage] = chain


def _follow(chains: dict[int, _Chain], chain: _Chain, call: OpCall) -> None:
    """Take one op that reads the chain: it selects, takes the logarithm, belongs to backward."""
    name = base(call.op)
    if call.mutates:
        chain.spoilt = True
    elif call.site.phase is Phase.BACKWARD:
        _backward(chain, call)
    elif name == "log":
        chain.pair.logs.append(call.site)
        chain.edited.append(_passed(call, 0))
    elif name in _SELECT:
        _hold(chains, chain, call)
    else:
        chain.spoilt = True


def _backward(chain: _Chain, call: OpCall) -> None:
    """The division by the probability, and softmax's own backward; nothing else reads it there."""
    name, refs = base(call.op), _given(call)
    reads = [r.storage in chain.holds for r in refs]
    if name == _SOFTMAX_BACKWARD and reads == [False, True]:
        chain.edited.append(_renamed(call, _SOFTMAX))
    elif call.op == "aten.div.Tensor" and reads == [False, True]:
        chain.edited.append(_passed(call, 0))
    else:
        chain.spoilt = True


def _renamed(call: OpCall, part: str) -> OpCall:
    return replace(call, op=call.op.replace(part, f"_log{part}", 1))


def _passed(call: OpCall, place: int) -> OpCall:
    """Return an op that hands on one of its inputs in the format of its result."""
    (out,), given = refs_in(call.outputs), call.args[place]
    if given.dtype == out.dtype:
        return replace(call, op="aten.clone.default", args=(given,), kwargs={})
    kwargs = {"dtype": torch_dtype(out.dtype)}
    return replace(call, op="aten._to_copy.default", args=(given,), kwargs=kwargs)


def _given(call: OpCall) -> list[TensorRef]:
    return refs_in((call.args, call.kwargs))
