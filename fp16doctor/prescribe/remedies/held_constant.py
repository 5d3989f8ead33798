"""Tries constants that the format can hold in place of those that it rounds to 0 or 1.

An eps of the optimizer is held to more than finite steps: they must be those of fp32 with the
script's own eps.

Must not know how a constant is found on a tape.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from fp16doctor.errors import ReplayError
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.edit import diff, with_number
from fp16doctor.prescribe.optimizer_step import optimizer_step
from fp16doctor.prescribe.vanishing import Vanishing, edited, one_by_one_and_all, vanishing
from fp16doctor.schema.finding import Fault, Finding
from fp16doctor.schema.location import Phase
from fp16doctor.schema.policy import AS_RUN
from fp16doctor.schema.prescription import (
    Prescription,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)
from fp16doctor.schema.spelling import number

MOST = 4  # constants that are tried
_BOUND = "judged against fp32 with the same constants"
_POLES = (Fault.NAN_BIRTH, Fault.OVERFLOW, Fault.UNDERFLOW)


def propose(case: Case) -> Iterator[Prescription]:
    """The first edit that is accepted: one constant, or all that vanish in front of the fault."""
    if case.bench is None or not case.bench.tapes:
        return
    treated = [(i, f) for i, f in case.demanding if f.fault in _POLES and f.site is not None]
    found = _found(case.bench, [f for _, f in treated])
    until = time.perf_counter() + case.bench.left_s
    for constants in one_by_one_and_all(found):
        proof = _proof(case.bench, constants, until - time.perf_counter())
        if proof.verdict is Verdict.VERIFIED:
            proof = _held_to_steps(case.bench, constants, proof)
            yield Prescription(_remedy(constants), tuple(i for i, _ in treated), proof)
            return


def _found(bench: Bench, findings: list[Finding]) -> tuple[Vanishing, ...]:
    """What vanishes in front of the first fault that a kept step shows."""
    for tape in bench.tapes:
        sites = [f.site for f in findings if f.site is not None and f.site.step == tape.step]
        if sites:
            return vanishing(tape, max(s.index for s in sites))[:MOST]
    return ()


def _proof(bench: Bench, constants: tuple[Vanishing, ...], left_s: float) -> Verification:
    """The kept steps with the edit, as they would run, against fp32 with the edit."""
    tapes, window = (tuple(edited(t, constants) for t in ts) for ts in (bench.tapes, bench.window))
    proof = bench.verification(Bench(tapes, left_s, window=window).as_settled())
    return replace(proof, reason=_BOUND) if proof.verdict is Verdict.VERIFIED else proof


def _held_to_steps(
    bench: Bench, constants: tuple[Vanishing, ...], proof: Verification
) -> Verification:
    """Refute what lets the optimizer take other steps than it would in fp32."""
    if all(v.site.phase is not Phase.OPTIMIZER for v in constants):
        return proof
    tapes, window = (tuple(edited(t, constants) for t in ts) for ts in (bench.tapes, bench.window))
    try:
        with bench.timing():
            found = optimizer_step(bench.tapes, tapes, window, AS_RUN)
    except ReplayError as error:
        return replace(proof, verdict=Verdict.NOT_VERIFIED, reason=error.message)
    proof = replace(proof, after={**proof.after, **found.numbers})
    if not found.reason:
        return proof
    return replace(proof, verdict=Verdict.REFUTED, reason=found.reason)


def _remedy(constants: tuple[Vanishing, ...]) -> Remedy:
    named = ", ".join(dict.fromkeys(map(_named, constants)))
    return Remedy(
        RemedyKind.CODE_FIX,
        f"use {named}",
        change="\n".join(map(_edit, constants)),
        target=tuple(dict.fromkeys(v.rule.pattern for v in constants)),
    )


def _named(constant: Vanishing) -> str:
    rule = constant.rule
    what = "eps " if constant.rounded == 0 else ""
    return (
        f"{what}{number(rule.new)} in place of {number(rule.old)}, which is "
        f"{number(constant.rounded)} in {constant.format}"
    )


def _edit(constant: Vanishing) -> str:
    """The user's line with the constant; what to change where it is not on the line."""
    rule, line = constant.rule, constant.site.source or constant.site.caller
    text = line.text if line is not None else None
    if line is not None and text is not None:
        change = diff(line, with_number(text, rule.old, _spelled(constant)))
        if change:
            return change
    place = rule.pattern.partition(":")[2]
    passed = f"pass {_spelled(constant)} for what is {rule.old!r}"
    if constant.site.phase is Phase.OPTIMIZER:
        return f"# where the optimizer stepped at {place} is made: {passed}"
    return f"# {place}: {passed} in this call"


def _spelled(constant: Vanishing) -> str:
    """The number in Python; next to 1 by the format's own constant."""
    if constant.rounded == 0:
        return repr(constant.rule.new)
    dtype = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}[constant.format]
    return (
        f"1 - torch.finfo({dtype}).eps"
        if constant.rounded > 0
        else (f"torch.finfo({dtype}).eps - 1")
    )
