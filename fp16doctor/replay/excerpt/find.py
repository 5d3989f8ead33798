"""Finds the shortest excerpt that shows a suspected fault.

Must not know findings or words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fp16doctor.replay.excerpt.build import CannotBuildError, Draft, build, is_one_of_many, item_of
from fp16doctor.replay.excerpt.capture import capture
from fp16doctor.replay.excerpt.chains import Chain, chains
from fp16doctor.replay.excerpt.run import HALF, SINGLE, Widened, looks, off_limit, run
from fp16doctor.replay.excerpt.shrink import Given, shrink
from fp16doctor.schema.excerpt import Excerpt, Sample, Shows, Value
from fp16doctor.schema.tape import OpCall, Tape, TensorRef

_HALF = (torch.float16, torch.bfloat16)
MOST_ITEMS = 200  # tensors of a foreach op that are looked at


@dataclass(frozen=True, slots=True)
class Suspect:
    """An op whose result may show a fault, and the op that may be behind it."""

    target: int
    cause: int | None
    shows: tuple[Shows, ...]  # the likeliest first


def find(tape: Tape, suspect: Suspect) -> Excerpt | None:
    """Return the excerpt of a suspect, None where no chain of ops shows a fault by itself."""
    every = tuple(chains(tape, suspect.target, suspect.cause))
    captured = capture(tape, frozenset(i for chain in every for i in chain))
    drafts = list(_drafts(tape, every, captured, suspect.cause))
    for shows in suspect.shows:
        for draft in drafts:
            for answer in _answers(draft, shows):
                found = _Candidate(draft, answer, shows)
                if found.sample(draft.given) is not None:
                    return found.excerpt()
    return None


def _drafts(
    tape: Tape,
    every: tuple[Chain, ...],
    captured: dict[TensorRef, Tensor],
    cause: int | None,
) -> Iterator[Draft]:
    for chain in every:
        call = tape.ops[chain[-1]]
        if is_one_of_many(call):
            yield from _items(tape, chain, captured)
            continue
        try:
            draft = build(tape, chain, captured)
        except CannotBuildError:
            continue
        if chain[0] == cause and len(chain) > 1 and _has_one_result(tape.ops[cause]):
            draft.cause = Value(draft.lines[0].result)
        yield draft


def _answers(draft: Draft, shows: Shows) -> list[Value]:
    """A call that raised left no result; what it would have given is the last line's."""
    return [Value(draft.lines[-1].result)] if shows is Shows.REFUSED else draft.answers


def _has_one_result(call: OpCall) -> bool:
    return isinstance(call.outputs, TensorRef) and not call.mutates


def _items(tape: Tape, chain: Chain, captured: dict[TensorRef, Tensor]) -> Iterator[Draft]:
    """Yield a foreach op on one item of its lists after the other."""
    if len(chain) > 1:
        return
    index = chain[0]
    call = tape.ops[index]
    lists = [a for a in (*call.args, *call.kwargs.values()) if isinstance(a, list)]
    for place in range(min(max(map(len, lists), default=0), MOST_ITEMS)):
        alone = item_of(call, place)
        ops = (*tape.ops[:index], alone, *tape.ops[index + 1 :])
        try:
            yield build(replace(tape, ops=ops), chain, captured)
        except CannotBuildError:
            continue


class _Candidate:
    """One draft that is asked for one fault."""

    def __init__(self, draft: Draft, answer: Value, shows: Shows) -> None:
        self._draft, self._answer, self._shows = draft, answer, shows
        self._before = draft.written.get(answer)
        self._widened = _widened(draft)

    def sample(self, given: Given) -> Sample | None:
        """Return an element that shows the fault, None where none does."""
        return looks(self._draft, given, self._answer, self._widened, self._shows)

    def excerpt(self) -> Excerpt:
        """Return it with as little given as still shows the fault."""
        whole = self._draft.given
        given = shrink(whole, lambda smaller: self.sample(smaller) is not None)
        sample = self.sample(given)
        assert sample is not None, "what is cut still shows the fault"
        return Excerpt(
            lines=tuple(self._draft.lines),
            given=dict(sorted(given.items())),
            answer=self._answer,
            shows=self._shows,
            widened=self._widened,
            sample=sample,
            before=self._before if self._shows is Shows.UNCHANGED else None,
            limit=self._limit(given),
            full_size=sum(t.numel() for t in whole.values()),
        )

    def _limit(self, given: Given) -> float:
        if self._shows is Shows.REFUSED:
            return 0.0
        (low,) = run(self._draft.lines, given, (), self._answer)
        return off_limit(low.dtype)


def _widened(draft: Draft) -> Widened:
    """Return fp32 beside 16-bit formats, fp64 beside fp32."""
    named = [v for line in draft.lines for v in (*line.args, *line.kwargs.values())]
    dtypes = [*(t.dtype for t in draft.given.values()), *named]
    return HALF if any(d in _HALF for d in dtypes if isinstance(d, torch.dtype)) else SINGLE
