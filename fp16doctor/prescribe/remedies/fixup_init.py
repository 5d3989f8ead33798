"""Tries Fixup's initial weights on the first step and over the run's first steps.

Must not know how a step is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from fp16doctor.apply.fixup_plan import FixupPlan
from fp16doctor.errors import FixupError, ReplayError
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.fixup_code import pasted
from fp16doctor.prescribe.fixup_weights import SEED, additions_of, plan_on, with_fixup
from fp16doctor.replay.stream import growth_of, stream_behind
from fp16doctor.schema.finding import Fault
from fp16doctor.schema.prescription import Prescription, Remedy, RemedyKind, Verification
from fp16doctor.schema.stream import StreamBlock
from fp16doctor.schema.tape import Tape

GROWING_STREAM = "FD501"
GROWTH = "binades gained per block"


def propose(case: Case) -> Iterator[Prescription]:
    """One prescription for a stream that grows by its initial weights, if step 0 was kept."""
    treats = tuple(i for i, f in case.demanding if f.code == GROWING_STREAM)
    tape = first_step(case)
    if not treats or tape is None or case.bench is None:
        return
    try:
        plan = plan_on(tape)
    except FixupError:  # the finding's own advice names other cures
        return
    overflows = tuple(i for i, f in case.demanding if f.fault is Fault.OVERFLOW)
    proof = proof_from(case.bench, tape, lambda t: with_fixup(t, plan))
    grown = _with_growth(case.bench, proof, tape, plan)
    yield Prescription(_remedy(plan), treats + overflows, grown)


def first_step(case: Case) -> Tape | None:
    """Return the kept step that ran with the initial weights."""
    tapes = case.bench.tapes if case.bench is not None else ()
    return next((t for t in tapes if t.step == 0), None)


def proof_from(bench: Bench, tape: Tape, changed: Callable[[Tape], Tape]) -> Verification:
    """The run as it would go from other initial weights, against fp32 from the same.

    The first step, and the consecutive ones where they begin with it: there the weights are
    carried on, so that only those that no step writes are changed again.
    """
    window = bench.window if bench.window and bench.window[0].step == tape.step else ()
    again = Bench((changed(tape),), bench.left_s, window=tuple(map(changed, window)))
    with bench.timing():
        return replace(bench.verification(again.as_settled()), steps=(0,))


def _with_growth(bench: Bench, proof: Verification, tape: Tape, plan: FixupPlan) -> Verification:
    """Add how the stream goes from block to block, as run and from the new weights."""
    if bench.exhausted:
        return proof
    additions = additions_of(tape)
    try:
        with bench.timing():
            before = stream_behind(tape, additions)
            after = stream_behind(with_fixup(tape, plan), additions)
    except ReplayError:
        return proof
    places = [tape.ops[a].site.module_path or "" for a in additions]
    blocks = tuple(map(StreamBlock, places, before, after))
    gained = [growth_of(sizes) for sizes in (before, after)]
    if gained[0] is None or gained[1] is None:
        return replace(proof, stream=blocks)
    return replace(
        proof,
        before=proof.before | {GROWTH: gained[0]},
        after=proof.after | {GROWTH: gained[1]},
        stream=blocks,
    )


def _remedy(plan: FixupPlan) -> Remedy:
    stem = _stem(plan)
    below = f" of `{stem}`" if stem else ""
    factors = sorted({b.factor for b in plan.branches if b.scaled})
    scaled = f", the others with std √(2/fan_out) × {factors[0]:.4g}" if len(factors) == 1 else ""
    closed = f", `{'`, `'.join(plan.classifier)}` 0" if plan.classifier else ""
    return Remedy(
        RemedyKind.FIXUP_INIT,
        f"initialise the {plan.depth} branches{below} by Fixup: the last layer of each 0"
        f"{scaled}{closed}",
        change=pasted(plan, SEED),
        target=(f"module:{stem}.*" if stem else "module:*",),
    )


def _stem(plan: FixupPlan) -> str:
    """The module that holds all branches."""
    shared = []
    for pieces in zip(*(b.path.split(".") for b in plan.branches), strict=False):
        if len(set(pieces)) > 1:
            break
        shared.append(pieces[0])
    return ".".join(shared)
