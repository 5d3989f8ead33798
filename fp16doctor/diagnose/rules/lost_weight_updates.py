"""Weights stored in 16 bits do not take the updates that the optimizer makes.

What it checks:
    For each 16-bit parameter the realised fraction ⟨Δ, Δref⟩ / ‖Δref‖² of its updates over the
    examined steps: Δ as stored, Δref the same optimizer step in fp32 from the same weights.
    Stochastic rounding realises 1 although most elements stand still; a 16-bit copy of an fp32
    master is not looked at.

Why it matters:
    weight + update == weight where the update is below half the spacing at the weight: 2⁻⁹ of it
    in bf16, 2⁻¹² in fp16. Such a weight never moves, however many steps follow.

Example:
    model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

Remedy:
    Keep the parameters in fp32 and compute under autocast, or let the optimizer keep an fp32
    master copy, round stochastically or carry the rounding error along (Kahan).

References:
    Zamirai et al., Revisiting BFloat16 Training, arXiv 2010.06192; Micikevicius et al.,
    arXiv 1710.03740, section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import counted, place
from fp16doctor.diagnose.shares import is_accumulator, stays_behind
from fp16doctor.diagnose.update_words import arrives, movement, swallowed
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.precision import UpdateLoss

_ERROR_SHARE = 0.1  # of all elements of 16-bit parameters


@rule(code="FD301", name="lost-weight-updates", needs=("updates",))
def lost_weight_updates(seen: Observations) -> Iterator[Finding]:
    """Yield one finding for all parameters that do not follow."""
    weights = [u for u in seen.updates if u.role == "parameter" and not is_accumulator(u)]
    lost = [u for u in weights if stays_behind(u)]
    if lost:
        yield _finding(lost, weights)


def _finding(lost: list[UpdateLoss], weights: list[UpdateLoss]) -> Finding:
    worst = max(lost, key=lambda u: u.total)
    share = sum(u.total for u in lost) / sum(u.total for u in weights)
    return Finding(
        code="FD301",
        name="lost-weight-updates",
        severity=Severity.ERROR if share >= _ERROR_SHARE else Severity.WARNING,
        fault=Fault.LOST_UPDATE,
        what=(
            f"{len(lost)} of {counted(len(weights), f'{worst.format} parameter')} lose their "
            f"updates: {swallowed(worst)}"
        ),
        cause=f"Of the updates of `{worst.name}` {arrives(worst)}. The weights are stored in "
        f"{worst.format} and {place(worst.site)} adds to them in place; no wider copy takes the "
        "update.",
        site=worst.site,
        evidence=(*movement(worst), *_standing(weights, worst)),
        consequences=len(lost) - 1,
        reaches=("parameters",),
        advice=(
            "keep the parameters in fp32 and compute under autocast, or use an optimizer with "
            f"fp32 master weights; a larger learning rate moves more of the {worst.format} weights"
        ),
    )


def _standing(weights: list[UpdateLoss], worst: UpdateLoss) -> tuple[Evidence, ...]:
    """Elements of all parameters in the format that should move and do not."""
    if len(weights) < 2:
        return ()
    unchanged, meant = sum(u.unchanged for u in weights), sum(u.should_move for u in weights)
    over = f"unchanged elements of {len(weights)} parameters over {worst.steps} steps"
    return (
        Evidence(over, float(unchanged), "recorded", format=worst.format, count=unchanged,
                 total=meant),
    )  # fmt: skip
