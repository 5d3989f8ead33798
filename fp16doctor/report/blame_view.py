"""Words the error budget: a line, a table, and the shares as bars; left out where it is no answer.

Must not know where on a page it stands.
"""

from __future__ import annotations

import math

from fp16doctor.report import wording
from fp16doctor.report.run_story import loses_gradients, top_finding
from fp16doctor.report.view_model import BlameRow, BlameView, Meter, Table
from fp16doctor.schema.blame import BlamedOp, ErrorBudget
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Fault, Finding
from fp16doctor.schema.location import Phase
from fp16doctor.schema.prescription import RecommendationStatus

ALONE, JOINT = "goes without it", "goes without it and those above"
_HEAD = ("bar", "share", "op", "phase", "place", JOINT)
_BAR = 10  # characters of a full bar
_LEAST = 1e-4  # smaller shares are not told apart
_BIRTHS = "non-finite"  # how the quantity of a step that is not finite begins
_OF_ERROR = (
    (ALONE, "how much of the squared error goes where this op alone does not round: errors add to "
     "each other and cancel, so that these shares need not add up to 100\u00a0%, and an op whose "
     "error cancels others has a negative one"),
    (JOINT, "how much goes where neither this op nor those above it round, measured together"),
)  # fmt: skip
_OF_BIRTHS = (
    (ALONE, "how many of the elements become finite where this op alone runs in fp32: none, where "
     "another inf or NaN still reaches them"),
    (JOINT, "how many become finite where it and those above run in fp32, measured together"),
)  # fmt: skip
# Faults in what is done with the gradients: they may be right to the last bit.
_OF_USE = (Fault.MISUSE, Fault.LOSS_SCALE, Fault.LOST_UPDATE, Fault.OBSERVATION)
_OF_VALUES = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD)


def blame_view(diagnosis: Diagnosis) -> BlameView:
    """Word the budget; everything is empty where none was asked for, or it tells of no finding."""
    budget, top = diagnosis.error_budget, top_finding(diagnosis)
    if budget is None or (top is not None and not _tells(diagnosis, budget, top)):
        return BlameView("", "", Table(_HEAD, ()))
    ops = diagnosis.blame
    note = f"not measured: {budget.reason}" if budget.reason and not ops else budget.reason
    legend = _OF_BIRTHS if budget.quantity.startswith(_BIRTHS) else _OF_ERROR
    rows = tuple(_drawn(op) for op in ops)
    table = Table(_HEAD, tuple(map(_row, ops)))
    return BlameView(budget.sentence, note, table, rows, legend if rows else ())


def _tells(diagnosis: Diagnosis, budget: ErrorBudget, top: Finding) -> bool:
    """Whether the errors of the budget's step have to do with the finding of the answer."""
    if top.site is None or top.site.phase not in _OF_VALUES:
        return False
    if diagnosis.recommendation.status is RecommendationStatus.NOT_PRECISION:
        return False
    steps = {top.site.step, *(s.step for s in top.repeats)}
    if budget.step >= 0 and budget.step not in steps:
        return False
    return top.fault not in _OF_USE or loses_gradients(top)


def _drawn(op: BlamedOp) -> BlameRow:
    name = wording.op_name(op.site.op)
    return BlameRow(name, op.site.phase.value, _place(op), _meter(op.share), _meter(op.cumulative))


def _meter(value: float | None) -> Meter:
    if value is None or not math.isfinite(value):
        return Meter(wording.NOTHING, None)
    return Meter(_share(value), round(100 * min(max(value, 0.0), 1.0), 1))


def _row(op: BlamedOp) -> tuple[str, ...]:
    where = wording.op_name(op.site.op), op.site.phase.value, _place(op)
    return _bar(op), _share(op.share), *where, _share(op.cumulative)


def _place(op: BlamedOp) -> str:
    line = wording.own_line(op.site)
    at = wording.location(line) if line is not None else ""
    return wording.joined(wording.module_name(op.site), at) or wording.NOTHING


def _share(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return wording.NOTHING
    if 0 < abs(value) < _LEAST:
        return f"< 0.01{wording.NO_BREAK}%"
    return wording.whole_share(value)


def _bar(op: BlamedOp) -> str:
    """One character for each tenth of the error; none where errors cancel."""
    return "█" * round(_BAR * min(max(op.share or 0.0, 0.0), 1.0))
