"""What an answer says in front of a cure that does not reach the cause, and beside a step's number.

Must not know the lines of an answer.
"""

from __future__ import annotations

from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.prescription import GROWS_ON

_BOUND = (
    "bound what makes the values grow (clip or decay the weights, normalise, lower the learning "
    "rate: the author's choice, none of it tried); until then "
)


def before_cure(said: str) -> str:
    """Return what comes first where a cure gives growing values room and no more, "" otherwise."""
    return _BOUND if GROWS_ON in said else ""


def loop_counts(diagnosis: Diagnosis, step: int) -> str:
    """Return `` (`i` = 230)``, what the script's loops count to; "" where they count alike."""
    counts = next((s.loops for s in diagnosis.steps if s.step == step), ())
    if not counts or [value for _, value in counts] == [step]:
        return ""
    return f" ({', '.join(f'`{name}` = {value}' for name, value in counts)})"
