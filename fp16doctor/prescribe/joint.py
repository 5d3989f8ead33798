"""Cures of two kinds as one: where a keep-list and a loss scale, or storage and either, are needed.

The parts are tried together on the bench, and are verified together or not at all.

Must not know how a single cure is found (``remedies``) or which cure is recommended (``plan``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log2

from fp16doctor.prescribe.acceptance import LOST_TENSOR
from fp16doctor.prescribe.attempt import Attempt
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.line_casts import places as cast_places
from fp16doctor.prescribe.ranking import rank
from fp16doctor.prescribe.remedies.keep_list import in_step, is_affordable, keep_remedy, places
from fp16doctor.prescribe.remedies.loss_scale import first_of, last_of, of_the_scale, scale_remedy
from fp16doctor.prescribe.remedies.storage import PARAMETERS
from fp16doctor.prescribe.search import Unit, grow, policy_of, shrink
from fp16doctor.prescribe.stored import REALISED, realised_in_fp32
from fp16doctor.prescribe.treatable import line_target, target
from fp16doctor.replay.trial import Trial
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.policy import BF16, PrecisionPolicy
from fp16doctor.schema.prescription import TOGETHER, Prescription, Remedy, RemedyKind, Verdict
from fp16doctor.schema.spelling import power

Group = tuple[Prescription, ...]

SCALES = (16, 12, 8, 20, 4)  # exponents of the loss scales that a keep-list is tried with
LARGEST = 24


def joint_cures(case: Case, found: Sequence[Prescription]) -> Iterator[Group]:
    """Yield groups of prescriptions that were tried together, where no single one does."""
    if case.bench is None or not case.bench.tapes:
        return
    yield from _with_storage(case.bench, found)
    kept = [(i, f) for i, f in case.of_precision if _is_of_a_place(f)]
    scaled = [i for i, f in case.demanding if of_the_scale(f)]
    if not kept or not (scaled or loses_gradients(case.bench)):
        return
    wanted = {i for i, _ in kept} | set(scaled)
    if not any(_does_it(p, wanted) for p in found):
        yield from _keep_and_scale(case, case.bench, kept, scaled)


def _is_of_a_place(finding: Finding) -> bool:
    return finding.site is not None and not in_step(finding) and not of_the_scale(finding)


def _does_it(prescription: Prescription, wanted: set[int]) -> bool:
    """A verified cure of everything that is no other format: that is what is to be spared."""
    verified = prescription.verification.verdict is Verdict.VERIFIED
    spares = prescription.remedy.kind is not RemedyKind.DTYPE
    return verified and spares and wanted <= set(prescription.treats)


def loses_gradients(bench: Bench) -> bool:
    """Tell whether a keep-list that leaves nothing non-finite was refused for lost gradients."""
    refused = (a.judgements[-1] for a in bench.tried if a.policy.keep and a.judgements)
    return any(not j.accepted and not j.nonfinite and j.lost >= LOST_TENSOR for j in refused)


# -- keep-list and loss scale ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AtScale:
    """The bench with a loss scale beside whatever is tried on it."""

    bench: Bench
    scale: float

    def attempt(self, policy: PrecisionPolicy) -> Attempt:
        """Try a policy at this scale."""
        return self.bench.attempt_at(policy, self.scale)

    def reference(self, place: int) -> Trial:
        """Return the fp32 replay of one kept step."""
        return self.bench.reference(place)


def _keep_and_scale(
    case: Case, bench: Bench, kept: list[tuple[int, Finding]], scaled: list[int]
) -> Iterator[Group]:
    sites = [s for _, f in kept for s in places(f)]
    treats = tuple(i for i, _ in kept)
    for unit in (target, line_target):
        start = tuple(dict.fromkeys(map(unit, sites)))
        for exponent in SCALES:
            attempt = _at(bench, start, unit, 2.0**exponent)
            remedy = keep_remedy(case, attempt.policy.keep) if attempt is not None else None
            if attempt is not None and remedy is not None and is_affordable(remedy):
                by = _scale(bench, attempt, exponent)
                yield _together(bench, attempt, (remedy, treats), (by, tuple(scaled) or treats))
                return
    refused = bench.attempt_at(policy_of(tuple(map(target, sites))), 2.0 ** SCALES[0])
    yield (_refused(case, bench, refused, treats, 2.0 ** SCALES[0]),)


def _at(bench: Bench, start: tuple[str, ...], unit: Unit, scale: float) -> Attempt | None:
    """Return the shortest list that is accepted at a loss scale, None where there is none."""
    at_scale = AtScale(bench, scale)
    attempt = grow(at_scale, start, unit, margin=False)
    return None if attempt is None else shrink(at_scale, attempt, margin=False)


def _scale(bench: Bench, attempt: Attempt, exponent: int) -> Remedy:
    def holds(e: int) -> bool:
        return bench.attempt_at(attempt.policy, 2.0**e).accepted

    low = first_of(range(exponent + 1), holds)
    high = last_of(range(exponent, LARGEST + 1), holds)
    best = 2.0**exponent
    return scale_remedy(bench, 2.0 ** (exponent if low is None else low), best,
                        2.0 ** (exponent if high is None else high))  # fmt: skip


# -- storage and what computes ---------------------------------------------------------------------


def _with_storage(bench: Bench, found: Sequence[Prescription]) -> Iterator[Group]:
    """Parameters in fp32 together with the cure of another finding; each is verified alone."""
    verified = [p for p in found if p.verification.verdict is Verdict.VERIFIED]
    stored = next((p for p in verified if p.remedy.title == PARAMETERS[0]), None)
    others = sorted(
        (p for p in verified if stored and not set(p.treats) & set(stored.treats)), key=rank
    )
    other, policy = next(((p, q) for p in others if (q := _computes(p.remedy))), (None, None))
    if stored is None or other is None or policy is None:
        return
    attempt = bench.attempt(policy)
    with bench.timing():
        realised, _ = realised_in_fp32(bench.tapes, parameters=True, policy=policy)
    if not attempt.accepted or realised is None or realised < REALISED:
        return
    yield _together(bench, attempt, (other.remedy, other.treats), (stored.remedy, stored.treats))


def _computes(remedy: Remedy) -> PrecisionPolicy | None:
    """Return what a remedy computes in, with fp32 storage beside it; None for any other kind."""
    if remedy.kind is RemedyKind.FP32_KEEP:
        return replace(policy_of(remedy.target), stores_fp32=True, casts_back=bool(remedy.value))
    if remedy.kind is RemedyKind.DTYPE and remedy.value == "bf16":
        return replace(BF16, stores_fp32=True)
    return None


def _together(bench: Bench, attempt: Attempt, *parts: tuple[Remedy, tuple[int, ...]]) -> Group:
    """Return the parts with their common proof; each names the others."""
    proof = bench.verification(attempt)
    group = []
    for remedy, treats in parts:
        others = " and ".join(r.title for r, _ in parts if r is not remedy)
        told = (f"{TOGETHER}{others}", cast_places(remedy.casts), proof.reason)
        reason = "; ".join(filter(None, told))
        group.append(Prescription(remedy, treats, replace(proof, reason=reason)))
    return tuple(group)


def _refused(
    case: Case, bench: Bench, attempt: Attempt, treats: tuple[int, ...], scale: float
) -> Prescription:
    """Return a list that no loss scale makes a cure."""
    proof = bench.verification(attempt)
    reason = f"with a loss scale of {power(round(log2(scale)))} as well: {proof.reason}"
    remedy = keep_remedy(case, attempt.policy.keep)
    return Prescription(remedy, treats, replace(proof, reason=reason))
