"""A 16-bit tensor beside the weights (EMA copy, optimizer moment, buffer) does not follow.

What it checks:
    The realised fraction ⟨Δ, Δref⟩ / ‖Δref‖² of every 16-bit tensor that lives from step to step,
    is made from its own old value and is not trained: EMA copies, optimizer moments, buffers,
    sums, written in place or bound anew. Over all examined steps, and from the first of the last
    ones on in which less than half arrived: what follows at first may stop once it has grown.

Why it matters:
    decay · old + (1 − decay) · new with a decay of 0.997 changes a value by 3e-3 of the distance:
    bf16 has 8 bits and rounds that away, or up. The copy stays where it was, or drifts elsewhere,
    while the model learns; evaluation on it shows no progress.

Example:
    ema = copy.deepcopy(model).to(torch.bfloat16)
    for s, p in zip(ema.parameters(), model.parameters()):
        s.mul_(0.999).add_(p.to(s.dtype), alpha=0.001)

Remedy:
    Keep such tensors in fp32; cast a copy where 16 bits are needed.

References:
    https://github.com/pytorch/ao/issues/1124; Zamirai et al., arXiv 2010.06192.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import counted, place
from fp16doctor.diagnose.shares import has_stopped, is_accumulator, stays_behind
from fp16doctor.diagnose.update_words import arrives, movement, spacing, standing, stopped
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.precision import UpdateLoss


@rule(code="FD302", name="lost-state-updates", needs=("updates",))
def lost_state_updates(seen: Observations) -> Iterator[Finding]:
    """Yield one finding for each line that updates such tensors."""
    states = [u for u in seen.updates if u.role != "parameter" and not is_accumulator(u)]
    by_line: dict[object, list[UpdateLoss]] = {}
    for update in states:
        by_line.setdefault((update.site.source, update.site.op), []).append(update)
    for group in by_line.values():
        lost = [u for u in group if stays_behind(u) or has_stopped(u)]
        if lost:
            yield _finding(lost, group)


def _finding(lost: list[UpdateLoss], group: list[UpdateLoss]) -> Finding:
    worst = max(lost, key=lambda u: (stays_behind(u), u.total))
    late = not stays_behind(worst)
    beside = counted(len(group), f"{worst.format} tensor")
    hardly = f"lose their updates: of those of the largest {arrives(worst)}"
    return Finding(
        code="FD302",
        name="lost-state-updates",
        severity=Severity.ERROR,
        fault=Fault.LOST_UPDATE,
        what=f"{len(lost)} of {beside} beside the weights "
        + (stopped(worst, len(lost)) if late else hardly),
        cause=f"{spacing(worst)} {place(worst.site)} updates the tensor and stores "
        f"{worst.format}." + (f" {standing(worst)}" if late else ""),
        site=worst.site,
        evidence=movement(worst),
        consequences=len(lost) - 1,
        reaches=("buffers",),
        advice="keep the tensor in fp32 (EMA copy, moment, sum, running value) and cast a copy "
        "for use",
    )
