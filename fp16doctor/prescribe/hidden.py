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
    named = tuple(sites)
    if not named:
        return ""
    verb = "makes" if len(set(map(place_of, named))) == 1 else "make"
    return f"{named_places(named)} {verb} inf or NaN of finite inputs, and not in the run"


def named_places(sites: Iterable[OpSite]) -> str:
    """Each place once, the first ones by name: ``a and b and 3 more``; "" for none."""
    places = list(dict.fromkeys(map(place_of, sites)))
    more = f" and {len(places) - MOST_NAMED} more" if len(places) > MOST_NAMED else ""
    return " and ".join(places[:MOST_NAMED]) + more


def place_of(site: OpSite) -> str:
    """```aten.mul` at train.py:40``, the op alone where its line is not known."""
    line = site.caller or site.source
    name = f"`{site.op.removesuffix('.default')}`"
    return f"{name} at {line.file}:{line.line}" if line is not None else name
