"""Which guard cures an op that has no finite value, or no finite derivative, at its operand.

The constants are normal numbers of the format at the place, and its distance to 1 one that the
format holds next to 1. Must not know whether a guard is any better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from fp16doctor.formats import format_of_dtype_name, get_format
from fp16doctor.prescribe.guarded_line import (
    Operand,
    operands_on,
    with_added,
    with_bounds,
    with_finite_mask,
)
from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.guards import FORWARD, Guard, cast_of, guarded, guarded_ops
from fp16doctor.replay.node_backward import of_operand
from fp16doctor.replay.op_traits import base
from fp16doctor.replay.operand_facts import OperandFacts, facts_of, together
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.location import OpSite, SourceLine
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

_LOGS = ("log", "log2", "log10", "log1p")
_ROOTS = ("sqrt", "rsqrt", "pow")
_ARCS = ("acos", "asin")
QUOTIENTS = ("div", "reciprocal")
SUMS_OF_LOGS = ("logsumexp",)
GUARDED = (*_LOGS, *_ROOTS, *_ARCS, *QUOTIENTS, *SUMS_OF_LOGS)
_SOFTMAX = ("_softmax", "_safe_softmax", "_log_softmax")
_PASS_ON = ("_to_copy", "clone", "view", "_unsafe_view", "contiguous", "copy")

Edit = Callable[[Tape], Tape | None]


@dataclass(frozen=True, slots=True)
class Cure:
    """One guard: as a line of the script, and as an edit of a recorded step."""

    line: SourceLine
    text: str  # the new line
    what: str  # "clamp the count that is divided by"
    edit: Edit


@dataclass(frozen=True, slots=True)
class Place:
    """An op of forward that a finding comes from, with what it was given."""

    op: str  # "log"
    line: SourceLine
    format: str  # dtype at the place where a guard would stand
    facts: OperandFacts
    operands: tuple[Operand, ...]  # of each such op on the line; none where it leaves a doubt


def place_of(tape: Tape, finding: Finding, beside: tuple[Tape, ...] = ()) -> Place | None:
    """Return the op that a guard would stand in front of; None where none is known.

    ``beside``: other steps in which the same line is looked at.

    Raises:
        ReplayError: the step cannot be played.
    """
    call = None if finding.site is None else _forward_of(tape, finding.site)
    if call is None or call.site.source is None:
        return None
    line, name = call.site.source, _name(call)
    where = 1 if name == "div" else 0
    calls = guarded_ops(tape, line, name)
    refs = [c.args[where] for c in calls]
    if not all(isinstance(r, TensorRef) and not torch_dtype(r.dtype).is_complex for r in refs):
        return None
    operands = _operands(line, name, calls)
    casts_itself = any(x.is_cast for x in operands)
    cast = None if casts_itself else cast_of(tape, call, call.args[where])
    given = call.args[where] if cast is None else cast.args[0]
    facts = facts_of(tape, calls, where)
    for other in beside:
        if alike := guarded_ops(other, line, name):
            facts = together(facts, facts_of(other, alike, where))
    return Place(name, line, given.dtype, facts, operands)


def _operands(line: SourceLine, op: str, calls: tuple[OpCall, ...]) -> tuple[Operand, ...]:
    """What the line's ops are given, where all of them run as ops, and cast alike."""
    found = operands_on(line.text or "", op)
    if not found or len(calls) % len(found) or len({x.is_cast for x in found}) > 1:
        return ()
    return found


def cures_of(place: Place) -> Iterator[Cure]:
    """Yield guards, the one that changes least first; none where the line leaves a doubt."""
    if not place.operands:
        return
    facts, small = place.facts, small_in(place.format)
    if place.op in QUOTIENTS:
        if facts.least >= 0:
            yield from _bounded(place, "1" if facts.is_count else small)
    elif place.op in _ARCS:
        gap = _gap(place.format)
        yield from _bounded(place, f"-1 + {gap}", f"1 - {gap}")
    elif place.op in SUMS_OF_LOGS:
        yield from _bounded(place, least_log_in(place.format))
    elif place.op in _LOGS:
        yield from _bounded(place, f"{_gap(place.format)} - 1" if place.op == "log1p" else small)
    else:
        if facts.least >= 0:
            yield from _with_eps(place, small)
        yield from _bounded(place, small)


def mask_of(tape: Tape, finding: Finding) -> Cure | None:
    """Return the finite mask in place of −inf, where a softmax met a row of nothing else."""
    site = finding.site
    call = None if site is None else _call(tape, site)
    if call is None or base(call.op) not in _SOFTMAX:
        return None
    fill = _fill_of(tape, call)
    line = None if fill is None or fill.site.caller is not None else fill.site.source
    found = None if line is None else with_finite_mask(line.text or "")
    if line is None or found is None:
        return None
    what = "give the mask a finite value, so that a row without any unmasked entry attends evenly"
    return Cure(line, found, what, lambda tape: _with_finite_masks(tape, line))


def small_in(dtype: str) -> str:
    """Return a constant that a format holds as a normal number."""
    name = format_of_dtype_name(dtype)
    if name is None:
        return "1e-12"
    return "1e-12" if get_format(name).smallest_normal < 1e-12 else "1e-4"


def least_log_in(dtype: str) -> str:
    """Return a logarithm that a format holds and whose exponential is 0, also behind some sums."""
    return "-1e4" if dtype == "float16" else "-1e30"


def _gap(dtype: str) -> str:
    """A distance to 1 that the format holds next to 1."""
    known = {"float32": "1e-6", "float64": "1e-6", "float16": "1e-3"}
    return known.get(dtype, "1e-2")


def _bounded(place: Place, low: str, high: str = "") -> Iterator[Cure]:
    found = with_bounds(place.line.text or "", place.op, low, high)
    if found is not None:
        guard = replace(_guard(place), low=_number(low), high=_number(high) if high else None)
        yield Cure(place.line, found, _what(place), lambda tape: guarded(tape, guard))


def _with_eps(place: Place, eps: str) -> Iterator[Cure]:
    found = with_added(place.line.text or "", place.op, eps)
    if found is not None:
        guard = replace(_guard(place), add=float(eps))
        words = "add an eps under the root"
        yield Cure(place.line, found, words, lambda tape: guarded(tape, guard))


def _guard(place: Place) -> Guard:
    of_cast = any(x.is_cast for x in place.operands)
    where = 1 if place.op == "div" else 0
    return Guard(place.line, place.op, where, of_cast=of_cast)


def _number(text: str) -> float:
    """``-1 + 1e-6`` as Python has it; a whole number stays one, as a count's bound is."""
    parts = [float(p) for p in text.replace(" - ", " + -").split(" + ")]
    return int(text) if text.isdigit() else sum(parts)


def _what(place: Place) -> str:
    if place.op in QUOTIENTS:
        thing = "count" if place.facts.is_count else "divisor"
        return f"clamp the {thing} away from 0"
    if place.op in SUMS_OF_LOGS:
        return f"put a finite number in place of −inf in what `{place.op}` gets"
    return f"clamp what `{place.op}` gets to its domain"


def _forward_of(tape: Tape, site: OpSite) -> OpCall | None:
    """The finding's own op; of one of backward the op of forward that it belongs to."""
    call = _call(tape, site)
    if call is None or site.caller is not None:
        return None
    if site.phase in FORWARD:
        return call if _name(call) in GUARDED and not call.mutates else None
    beside = [
        c
        for c in tape.ops[: site.index]
        if c.site.phase in FORWARD and c.site.source == site.source and _name(c) in GUARDED
    ]
    found = [c for c in beside if c.site.caller is None and _owns(tape, c, site.index)]
    return found[0] if found and len(set(map(_name, found))) == 1 else None


def _owns(tape: Tape, call: OpCall, index: int) -> bool:
    place = 1 if _name(call) == "div" else 0
    if not isinstance(call.args[place], TensorRef):
        return False
    own = of_operand(tape, call, place)
    return own is not None and index in own.ops


def _call(tape: Tape, site: OpSite) -> OpCall | None:
    if site.step != tape.step or not 0 <= site.index < len(tape.ops):
        return None
    call = tape.ops[site.index]
    return call if call.op == site.op else None


def _name(call: OpCall) -> str:
    return base(call.op).rstrip("_")


def _fill_of(tape: Tape, call: OpCall) -> OpCall | None:
    """The masked_fill whose −inf a softmax was given, with nothing but casts in between."""
    while refs_in(call.args):
        index = producers_of(tape).last_writer(refs_in(call.args)[0].storage, call.index)
        if index is None:
            return None
        call = tape.ops[index]
        if _is_fill(call):
            return call
        if _name(call) not in _PASS_ON:
            return None
    return None


def _is_fill(call: OpCall) -> bool:
    return _name(call) == "masked_fill" and call.args[2:] == (float("-inf"),)


def _with_finite_masks(tape: Tape, line: SourceLine) -> Tape:
    return replace(tape, ops=tuple(_finite(c) if _fills(c, line) else c for c in tape.ops))


def _fills(call: OpCall, line: SourceLine) -> bool:
    return call.site.source == line and call.site.caller is None and _is_fill(call)


def _finite(call: OpCall) -> OpCall:
    x, mask, _ = call.args
    return replace(call, args=(x, mask, torch.finfo(torch_dtype(x.dtype)).min))
