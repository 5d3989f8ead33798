"""What candidates are called where the diagnosis lists them.

Must not know how they are tried.
"""

from __future__ import annotations

from fp16doctor.schema.policy import PrecisionPolicy


def family(policy: PrecisionPolicy) -> str:
    """What kind of candidate a policy is."""
    if policy.keep:
        return "keep-list"
    return "loss scale" if policy.name.startswith("loss scale") else policy.name


def course_name(policy: PrecisionPolicy) -> str:
    """What the losses of a candidate are called."""
    places = ", ".join(r.pattern for r in policy.keep)
    return f"fp32 for {places}" if places else policy.name
