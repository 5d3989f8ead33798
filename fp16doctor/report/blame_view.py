"""Words the error budget: a line, and a table whose shares are drawn as bars of characters.

Must not know where on a page it stands.
"""

from __future__ import annotations

import math

from fp16doctor.report import wording
from fp16doctor.report.view_model import BlameView, Table
from fp16doctor.schema.blame import BlamedOp
from fp16doctor.schema.diagnosis import Diagnosis

_HEAD = ("bar", "share", "op", "phase", "place", "with those above", "alone", "adjoint")
_BAR = 10  # characters of a full bar
_LEAST = 1e-4  # smaller shares are not told apart


def blame_view(diagnosis: Diagnosis) -> BlameView:
    """Word the budget; everything is empty where none was asked for."""
    budget = diagnosis.error_budget
    if budget is None:
        return BlameView("", "", Table(_HEAD, ()))
    ops = diagnosis.blame
    note = f"not measured: {budget.reason}" if budget.reason and not ops else budget.reason
    return BlameView(budget.sentence, note, Table(_HEAD, tuple(map(_row, ops))))


def _row(op: BlamedOp) -> tuple[str, ...]:
    line = wording.own_line(op.site)
    place = wording.joined(
        wording.module_name(op.site), wording.location(line) if line is not None else ""
    )
    where = wording.op_name(op.site.op), op.site.phase.value, place or wording.NOTHING
    rest = map(_share, (op.cumulative, op.alone, op.predicted))
    return _bar(op), _share(op.share), *where, *rest


def _share(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return wording.NOTHING
    if abs(value) < _LEAST:
        return f"< 0.01{wording.NO_BREAK}%"
    return wording.whole_share(value)


def _bar(op: BlamedOp) -> str:
    """One character for each tenth of the error; none where errors cancel."""
    return "█" * round(_BAR * min(max(op.share or 0.0, 0.0), 1.0))
