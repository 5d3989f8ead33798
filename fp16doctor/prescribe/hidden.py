"""Faults that show only once another one is cured: births in a trial that are none in the run.

Must not know remedies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fp16doctor.replay.trial import Trial
from fp16doctor.schema.location import OpSite

MOST_NAMED = 2


def hidden_births(
    run: Sequence[Trial], references: Sequence[Trial], trials: Sequence[Trial]
) -> tuple[OpSite, ...]:
    """Return the births of ``trials`` that neither the run nor the fp32 replay has.

    All three hold the same kept steps in the same order; ``trials`` may end early, and of a step
    that ``run`` does not hold nothing is said.
    """
    found = []
    for mine, other, trial in zip(run, references, trials, strict=False):
        known = {s.index for s in (*mine.births, *other.births)}
        found += [s for s in trial.births if s.index not in known]
    return tuple(found)


def hidden_words(sites: Iterable[OpSite]) -> str:
    """``then `aten.mul` at train.py:40 is not finite, which it was in the run``, "" for none."""
    places = list(dict.fromkeys(map(_place, sites)))
    if not places:
        return ""
    named = " and ".join(places[:MOST_NAMED])
    more = f" and {len(places) - MOST_NAMED} more" if len(places) > MOST_NAMED else ""
    verb = "makes" if len(places) == 1 else "make"
    return f"{named}{more} {verb} inf or NaN of finite inputs, and not in the run"


def _place(site: OpSite) -> str:
    line = site.caller or site.source
    name = f"`{site.op.removesuffix('.default')}`"
    return f"{name} at {line.file}:{line.line}" if line is not None else name
