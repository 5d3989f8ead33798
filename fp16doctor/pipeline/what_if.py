"""A recorded step under another policy, in the terms in which a scan tries its cures.

Must not know files or words.
"""

from __future__ import annotations

import difflib
from dataclasses import replace

from fp16doctor.errors import ReplayError, UsageError
from fp16doctor.prescribe.acceptance import (
    FAULT_NOT_SHOWN,
    Judgement,
    improvement_reason,
    judge,
)
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.settling import settled
from fp16doctor.record.simulation import arithmetic_of
from fp16doctor.replay.keep import covers
from fp16doctor.replay.narrow import is_wide
from fp16doctor.replay.outcome import as_recorded, repeat
from fp16doctor.replay.scales import at_scale, scale_of
from fp16doctor.replay.trial import Trial, run_narrow, run_trial
from fp16doctor.schema.bundle import Bundle
from fp16doctor.schema.policy import AS_RUN, BF16, FP16, FP32, FP64, KeepRule, PrecisionPolicy
from fp16doctor.schema.prescription import Verdict, Verification
from fp16doctor.schema.tape import Tape
from fp16doctor.schema.what_if import Question, Repetition, WhatIf

_POLICIES = {"as-run": AS_RUN, "fp16": FP16, "bf16": BF16, "fp32": FP32}
_REFERENCES = {"fp32": FP32, "fp64": FP64}
_KINDS = ("module", "function", "line", "op")
_NARROW = ("fp16", "bf16")
_NO_LIMIT = 1e9  # seconds: nobody waits for a budget here


def what_if(bundle: Bundle, question: Question) -> WhatIf:
    """Replay a step as run, in the reference, and as asked for.

    Raises:
        UsageError: a keep pattern that covers nothing, a loss scale that is none.
        ReplayError: the step as run cannot be replayed here.
    """
    _check_ended(bundle.tape)
    check_question(bundle.tape, question)
    with as_recorded(bundle.origin), arithmetic_of(bundle.tape):
        repetition = repeat(bundle.tape, bundle.outcome)
        return _Comparison(bundle, question).answer(repetition)


def _check_ended(tape: Tape) -> None:
    if tape.refused:
        last = tape.ops[-1].op
        raise ReplayError(
            f"step {tape.step} ended in a call that raised ({last}), so there is no loss and no"
            " gradient to compare; `fp16doctor repro` shows the call",
            "step-raised",
        )


class _Comparison:
    def __init__(self, bundle: Bundle, question: Question) -> None:
        self._bundle, self._question, self._tape = bundle, question, bundle.tape
        self._reference = run_trial(self._tape, _REFERENCES[question.reference])
        self._before = run_trial(self._tape, AS_RUN)
        self._policy = policy_of(self._tape, question)
        self._bench = Bench((self._tape,), _NO_LIMIT)

    def answer(self, repetition: Repetition) -> WhatIf:
        before, reference = self._judged(self._before, AS_RUN), self._judged(self._reference, FP32)
        found = WhatIf(
            origin=self._bundle.origin,
            question=self._question,
            moved=self._bundle.moved,
            repetition=repetition,
            verification=Verification(
                Verdict.NOT_VERIFIED,
                "nothing was changed",
                before=self._numbers(self._before, before),
                steps=(self._tape.step,),
            ),
            reference=self._numbers(self._reference, reference),
            births_before=tuple(self._before.births),
        )
        return self._with_change(found, before) if self._question.changes else found

    def _with_change(self, found: WhatIf, before: Judgement) -> WhatIf:
        try:
            trial = self._tried()
        except ReplayError as error:
            reason = error.message
            return replace(found, verification=replace(found.verification, reason=reason))
        after = self._judged(trial, self._policy)
        verdict, reason = self._verdict(before, after)
        reason = reason or self._settled_at(trial)
        verification = replace(
            found.verification, verdict=verdict, reason=reason, after=self._numbers(trial, after)
        )
        return replace(found, verification=verification, births_after=tuple(trial.births))

    def _tried(self) -> Trial:
        name = self._question.dtype
        if name in _NARROW and _is_untouched(self._tape):
            return run_narrow(self._tape, name, self._policy.scale_factor)
        trial = run_trial(self._tape, self._policy)
        if self._question.loss_scale is not None:
            return trial
        return settled(self._tape, self._policy, trial)  # as in a scan

    def _settled_at(self, trial: Trial) -> str:
        """Say that a scaler gets the credit too."""
        factor = trial.policy.scale_factor
        if self._question.loss_scale is not None or factor == self._policy.scale_factor:
            return ""
        scale = scale_of(self._tape) * factor
        return f"at the loss scale {scale:g}, to which a GradScaler would lower it under the change"

    def _judged(self, trial: Trial, policy: PrecisionPolicy) -> Judgement:
        floor = self._bench.floor(0, policy)
        return judge(self._tape, self._reference, trial, floor=floor)

    def _verdict(self, before: Judgement, after: Judgement) -> tuple[Verdict, str]:
        """Hold the change to the criteria, and against the run where that meets them too."""
        if not after.accepted:
            return Verdict.REFUTED, after.reason
        if not before.accepted or _is_untouched(self._tape):  # of fp32 nothing better is asked
            return Verdict.VERIFIED, ""
        floor = self._bench.floor(0, AS_RUN)  # the run's own rounding, as a scan holds it
        reason = improvement_reason(
            before.gradient_error,
            after.gradient_error,
            floor,
            in_part=bool(self._policy.keep) and not self._policy.widen,
        )
        if reason.startswith(FAULT_NOT_SHOWN):
            return Verdict.NOT_VERIFIED, self._not_shown(reason, before)
        return (Verdict.REFUTED, reason) if reason else (Verdict.VERIFIED, "")

    def _not_shown(self, reason: str, before: Judgement) -> str:
        """Name the finding: its cure may have been tried over many steps, or on the weights."""
        finding = self._bundle.origin.finding
        if finding is None:
            return reason
        return (
            f"this step alone does not show {finding.code} {finding.name}: the run's gradient error"
            f" of {before.gradient_error or 0:.3g} is within the step's sensitivity to rounding;"
            " the verdict on its cures is that of the scan, over consecutive steps"
        )

    def _numbers(self, trial: Trial, judgement: Judgement) -> dict[str, float]:
        scale = scale_of(self._tape)
        found: dict[str, float | None] = {
            "non-finite elements": float(judgement.nonfinite),
            "non-finite ops": float(trial.nonfinite_ops),
            "births": float(len(trial.births)),
            "gradient error": judgement.gradient_error,
            "gradient lost": judgement.lost,
            "descent kept": judgement.descent,
            "loss": None if trial.loss is None else trial.loss / scale,
            "loss scale": scale * trial.policy.scale_factor,
        }
        return {name: value for name, value in found.items() if value is not None}


def policy_of(tape: Tape, question: Question) -> PrecisionPolicy:
    """Return the policy that a question asks for."""
    known = _POLICIES[question.dtype]
    rules = tuple(KeepRule(pattern) for pattern in question.keep)
    policy = replace(known, keep=rules) if rules else known
    return policy if question.loss_scale is None else at_scale(policy, tape, question.loss_scale)


def check_question(tape: Tape, question: Question) -> None:
    """Raise UsageError bad-loss-scale, bad-keep, keep-covers-nothing, keep-beside-dtype."""
    scale = question.loss_scale
    if scale is not None and not 0 < scale < float("inf"):
        raise UsageError(
            f"--loss-scale multiplies the loss and got {scale:g}; pass a finite number above 0",
            "bad-loss-scale",
        )
    for pattern in question.keep:
        _check_keep(tape, pattern)
    if question.keep and question.dtype in _NARROW and _is_untouched(tape):
        raise UsageError(
            f"step {tape.step} ran without fp16 and bf16, so that --keep has nothing to take out of"
            f" --dtype {question.dtype}; pass one of them",
            "keep-beside-dtype",
        )


def _is_untouched(tape: Tape) -> bool:
    """Tell whether a step ran without any 16-bit format."""
    return all(is_wide(tape, name) for name in _NARROW)


def _check_keep(tape: Tape, pattern: str) -> None:
    rule = KeepRule(pattern)
    if rule.kind not in _KINDS or not rule.what:
        raise UsageError(
            f"--keep got {pattern!r}; pass module:PATH, function:FILE:NAME, line:FILE:NUMBER or"
            " op:NAME, as the remedies of a report name them",
            "bad-keep",
        )
    if any(covers(rule, call.site) for call in tape.ops):
        return
    names = _names(tape, rule.kind)
    close = difflib.get_close_matches(rule.what, names, n=3, cutoff=0.4) or names[:3]
    hint = f"; there is {', '.join(f'{rule.kind}:{n}' for n in close)}" if close else ""
    raise UsageError(
        f"--keep {pattern} covers no op of step {tape.step}{hint}", "keep-covers-nothing"
    )


def _names(tape: Tape, kind: str) -> list[str]:
    """Return what a rule of a kind could name on a tape, in tape order."""
    sites = [call.site for call in tape.ops]
    lines = [line for site in sites for line in (site.source, site.caller) if line is not None]
    found = {
        "module": [site.module_path for site in sites if site.module_path],
        "op": [site.op for site in sites],
        "function": [f"{x.file}:{x.function}" for x in lines],
        "line": [f"{x.file}:{x.line}" for x in lines],
    }
    return list(dict.fromkeys(found[kind]))
