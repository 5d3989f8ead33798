"""Sentences and numbers that the rules about the use of mixed precision share.

Must not know any single rule.
"""

from __future__ import annotations

from fp16doctor.diagnose.rule import Observations
from fp16doctor.diagnose.sentences import counted, line_name, number
from fp16doctor.schema.finding import Evidence
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.usage import UsageFact

# Optimizers whose step does not change when every gradient is multiplied by the same number.
_SCALE_FREE = frozenset(
    (
        *("adam", "adamw", "adamax", "nadam", "radam", "rmsprop", "rprop", "adagrad", "adadelta"),
        *("sparseadam", "adafactor", "lion", "lamb", "lars", "muon", "adam8bit", "adamw8bit"),
    )
)


def scale_free(optimizer: str) -> bool:
    """Whether the optimizer's step is the same for gradients multiplied by one factor."""
    return optimizer.lower() in _SCALE_FREE


def line_of(site: OpSite) -> str:
    """The user's own line: ` at `train.py:12``, "" where none is known."""
    line = site.caller or site.source
    return "" if line is None else f" at {line_name(line)}"


def seen_in(fact: UsageFact) -> str:
    """Seen in 40 steps."""
    return f"Seen in {counted(fact.steps, 'step')} of those looked at."


def scale_evidence(fact: UsageFact) -> tuple[Evidence, ...]:
    """The factor on the loss, where it is known."""
    if fact.loss_scale is None:
        return ()
    return (Evidence("loss scale", fact.loss_scale, "recorded"),)


def scale_words(fact: UsageFact) -> str:
    """``65536``; ``the loss scale`` where it is not known."""
    return "the loss scale" if fact.loss_scale is None else number(fact.loss_scale)


def scaled(fact: UsageFact) -> bool:
    """Whether the loss scale is known to differ from 1, or not known at all."""
    return fact.loss_scale is None or fact.loss_scale != 1


def ran(seen: Observations, dtype: str) -> int:
    """Ops whose output had this dtype (torch name), over the whole run."""
    return dict(seen.recording.run.ops_by_dtype).get(dtype, 0)
