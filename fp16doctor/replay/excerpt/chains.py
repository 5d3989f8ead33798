"""Which ops could show a fault: the op itself, the way to it from its cause, what lies upstream.

Must not know values.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.replay import op_traits
from fp16doctor.replay.dataflow import Producers, producers_of, writes
from fp16doctor.schema.tape import OpCall, Tape, refs_in

MOST_OPS = 16  # of one excerpt
DEEPEST = 8  # levels upstream

Chain = tuple[int, ...]  # positions on the tape, ascending


def chains(tape: Tape, target: int, cause: int | None) -> Iterator[Chain]:
    """Yield chains that end in ``target``: from its cause where one is known, then ever longer."""
    seen: set[Chain] = set()
    for chain in (*_from_cause(tape, target, cause), (target,), *_upstream(tape, target)):
        if chain not in seen:
            seen.add(chain)
            yield chain


def _from_cause(tape: Tape, target: int, cause: int | None) -> Iterator[Chain]:
    """Yield the ops on the way from the cause."""
    if cause is None or not cause < target:
        return
    onward, written = [cause], writes(tape.ops[cause])
    for call in tape.ops[cause + 1 : target + 1]:
        if not written.isdisjoint(_reads(call)):
            onward.append(call.index)
            written |= writes(call)
    wanted, found = {target}, []
    producers = producers_of(tape)
    for index in reversed(onward):
        if index in wanted:
            found.append(index)
            wanted |= _producers_of(producers, tape.ops[index])
    chain = tuple(reversed(found))
    if cause in chain and len(chain) <= MOST_OPS and all(map(_is_plain, _calls(tape, chain[1:]))):
        yield chain


def _upstream(tape: Tape, target: int) -> Iterator[Chain]:
    """Yield everything that feeds the op, one level after the other."""
    producers = producers_of(tape)
    found, edge = {target}, {target}
    for _ in range(DEEPEST):
        above = {i for index in edge for i in _producers_of(producers, tape.ops[index])}
        edge = {i for i in above - found if _is_plain(tape.ops[i])}
        found = found | edge
        if not edge or len(found) > MOST_OPS:
            return
        yield tuple(sorted(found))


def _producers_of(producers: Producers, call: OpCall) -> set[int]:
    last = {producers.last_writer(number, call.index) for number in _reads(call)}
    return {index for index in last if index is not None}


def _reads(call: OpCall) -> set[int]:
    return {r.storage for r in refs_in((call.args, call.kwargs))}


def _calls(tape: Tape, chain: Chain) -> list[OpCall]:
    return [tape.ops[i] for i in chain]


def _is_plain(call: OpCall) -> bool:
    """Tell whether an op gives the same results whenever it is run."""
    drawn = op_traits.is_draw(call.op) or op_traits.is_dropout(call.op)
    return not (call.opaque or call.rng is not None or drawn or op_traits.is_uninitialised(call.op))
