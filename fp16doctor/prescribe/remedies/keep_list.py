"""Searches the shortest list of places to keep in fp32.

Must not know how a keep-list is tried or applied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fp16doctor.prescribe.attempt import Attempt
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.cost import cost_of
from fp16doctor.prescribe.line_casts import SHORT, line_casts
from fp16doctor.prescribe.line_casts import places as cast_places
from fp16doctor.prescribe.paste import pasted
from fp16doctor.prescribe.search import Unit, grow, policy_of, shrink
from fp16doctor.prescribe.treatable import function_target, line_target, op_target, rises, target
from fp16doctor.replay.bare_products import leaving
from fp16doctor.replay.op_traits import base
from fp16doctor.replay.values import HALF
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.policy import KeepRule
from fp16doctor.schema.prescription import Prescription, Remedy, RemedyKind, Verdict

_CAST = "op:aten._to_copy"
MOST_FLOPS = 0.5  # a list that moves more than this is fp32 for everything
CHEAP_FLOPS = 0.25  # a list up to this share of the work is preferred to another format


def propose(case: Case) -> Iterator[Prescription]:
    """The list of modules and functions, and the list of lines, where each is accepted.

    Where neither is accepted or both are everything (the model in a module or on a line), the
    list of functions, then the list of ops.
    """
    treated = [(i, f) for i, f in case.of_precision if f.site is not None and not in_step(f)]
    if not treated:
        return
    treats = tuple(i for i, _ in treated)
    start = tuple(dict.fromkeys(target(s) for _, f in treated for s in places(f)))
    if case.bench is None:
        yield case.prescribe(keep_remedy(case, policy_of(start).keep), treats, None)
        return
    sites = tuple(s for _, f in treated for s in places(f))
    found: Found = []
    affordable: Found = []
    for unit in (target, line_target, function_target, op_target):
        if unit in (function_target, op_target) and affordable:
            break
        first = tuple(dict.fromkeys(map(unit, sites)))
        found += _lists(case, case.bench, first, unit)
        affordable = [x for x in found if is_affordable(x[0])]
    rising = any(rises(f) for _, f in treated)
    for given in _distinct(affordable):
        remedy, attempt = _usable(case, case.bench, *given)
        cure = case.prescribe(remedy, treats, attempt)
        yield _needing(_bounded(cure) if rising else cure)
    if not found:
        policy = policy_of(start)
        yield case.prescribe(keep_remedy(case, policy.keep), treats, case.bench.attempt(policy))


def _bounded(cure: Prescription) -> Prescription:
    """Say how far a proof goes where the values were growing."""
    proof = cure.verification
    if proof.verdict is not Verdict.VERIFIED:
        return cure
    reason = "the values rose steadily, and the list takes the limit away in these places only"
    return replace(cure, verification=replace(proof, reason=reason))


def is_affordable(remedy: Remedy) -> bool:
    """Not fp32 for everything, and not a cast: what that gives is decided where it is read."""
    return remedy.cost["flops_share"] <= MOST_FLOPS and _CAST not in remedy.target


Found = list[tuple[Remedy, Attempt]]


def _lists(case: Case, bench: Bench, first: tuple[str, ...], unit: Unit) -> Found:
    """Return the list with a margin; where that is no longer cheap, the shortest one as well."""
    found: Found = []
    for margin in (True, False):
        attempt = grow(bench, first, unit, margin=margin)
        if attempt is not None:
            short = shrink(bench, attempt, margin=margin)
            found.append((keep_remedy(case, short.policy.keep), short))
        if found and found[-1][0].cost["flops_share"] <= CHEAP_FLOPS:
            break
    return found


def _distinct(found: Found) -> Found:
    """Return the lists that differ, the cheapest first."""
    seen: set[tuple[str, ...]] = set()
    out: Found = []
    for remedy, attempt in sorted(
        found, key=lambda x: (x[0].cost["flops_share"], len(x[0].target))
    ):
        if remedy.target not in seen:
            seen.add(remedy.target)
            out.append((remedy, attempt))
    return out


def in_step(finding: Finding) -> bool:
    """An update in place by the optimizer: what is stored decides, not what is computed."""
    site = finding.site
    return site is not None and site.phase is Phase.OPTIMIZER and base(site.op).endswith("_")


def places(finding: Finding) -> Iterator[OpSite]:
    """Where the value was born and where its reason lies; the same line in other modules too."""
    sites = (finding.site, finding.cause_site, *finding.repeats)
    return (s for s in sites if s is not None)


def keep_remedy(case: Case, rules: tuple[KeepRule, ...], outputs: str | None = None) -> Remedy:
    """The list as a remedy: its targets, its cost, text to paste.

    ``outputs`` is the torch name of the format that the modules return, None for fp32.
    """
    names = ", ".join(f"`{r.what}`" for r in rules)
    targets = tuple(r.pattern for r in rules)
    tape = case.bench.tapes[0] if case.bench is not None else None
    back = f", its results in {SHORT[outputs]}" if outputs else ""
    return Remedy(
        RemedyKind.FP32_KEEP,
        f"keep {names} in fp32{back}",
        change=pasted(targets, case.device, tape, outputs, stores_half=case.stores_half),
        target=targets,
        value=outputs,
        cost=cost_of(tape, rules) if tape is not None else {},
        casts=line_casts(tape, rules) if tape is not None and not outputs else (),
    )


def _usable(case: Case, bench: Bench, remedy: Remedy, attempt: Attempt) -> tuple[Remedy, Attempt]:
    """Return the list with results cast back, where plain torch refuses it as it is.

    That is tried only where everything that leaves the kept places has one 16-bit format.
    """
    rules = attempt.policy.keep
    formats = leaving(bench.tapes[0], rules) if remedy.casts else frozenset()
    if len(formats) != 1 or not formats <= set(HALF):
        return remedy, attempt
    back = bench.attempt(replace(attempt.policy, casts_back=True))
    return (keep_remedy(case, rules, *formats), back) if back.accepted else (remedy, attempt)


def _needing(cure: Prescription) -> Prescription:
    """Say which lines the proof holds for with a cast only."""
    proof, told = cure.verification, cast_places(cure.remedy.casts)
    if not told or proof.verdict is not Verdict.VERIFIED:
        return cure
    reason = "; ".join(filter(None, (proof.reason, told)))
    return replace(cure, verification=replace(proof, reason=reason))
