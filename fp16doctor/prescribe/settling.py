"""The loss scale at which a GradScaler would settle under a candidate.

Must not know acceptance.
"""

from __future__ import annotations

from fp16doctor.prescribe.steps import tape_has_scale
from fp16doctor.replay.scales import at_scale, scale_of
from fp16doctor.replay.trial import Trial, run_trial
from fp16doctor.schema.policy import PrecisionPolicy
from fp16doctor.schema.tape import Tape


def settled(tape: Tape, policy: PrecisionPolicy, trial: Trial) -> Trial:
    """Lower the scale as a GradScaler would while only backward is non-finite."""
    scale = scale_of(tape)
    while _only_backward(trial) and scale > 1 and tape_has_scale(tape):
        scale = max(scale / 4, 1.0)
        trial = run_trial(tape, at_scale(policy, tape, scale))
    return trial


def _only_backward(trial: Trial) -> bool:
    return not trial.nonfinite.get("loss") and bool(trial.nonfinite.get("gradients"))
