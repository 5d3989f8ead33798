"""Runs an excerpt as recorded and in the wider format, and looks whether it shows its fault.

``EXPRESSIONS`` is what the written script evaluates; ``bad_elements`` evaluates the same.
Must not know tapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fp16doctor.formats.number_format import get_format
from fp16doctor.replay import op_traits
from fp16doctor.replay.casting import REFUSALS
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.excerpt.build import Draft
from fp16doctor.replay.values import FORMAT_NAMES, unravel
from fp16doctor.schema.excerpt import Line, Sample, Shows, Value

Widened = tuple[tuple[str, str], ...]
HALF: Widened = (("float16", "float32"), ("bfloat16", "float32"))
SINGLE: Widened = (*(("float16", "float64"), ("bfloat16", "float64")), ("float32", "float64"))
# A result further off than so many units roundoff of its format is not a matter of one rounding.
OFF_BY = 16
MOVED = 0.125  # relative error of a cause: three bits are gone


def run(
    lines: Sequence[Line], given: Mapping[str, Tensor], widened: Widened, *answers: Value
) -> list[Tensor]:
    """Return the answers with every dtype in ``widened`` replaced; raises what the ops raise."""
    wide = {torch_dtype(a): torch_dtype(b) for a, b in widened}
    values: dict[str, Any] = {
        name: t.to(wide.get(t.dtype, t.dtype), copy=True) for name, t in given.items()
    }
    with torch.no_grad():
        for line in lines:
            args = [_argument(a, values, wide) for a in line.args]
            kwargs = {k: _argument(v, values, wide) for k, v in line.kwargs.items()}
            values[line.result] = op_traits.resolve(line.op)(*args, **kwargs)
    return [_look_up(answer, values) for answer in answers]


def _argument(value: Any, values: Mapping[str, Any], wide: dict[torch.dtype, torch.dtype]) -> Any:
    if isinstance(value, Value):
        return _look_up(value, values)
    if isinstance(value, list):
        return [_argument(v, values, wide) for v in value]
    if isinstance(value, torch.dtype):
        return wide.get(value, value)
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _look_up(value: Value, values: Mapping[str, Any]) -> Any:
    found = values[value.name]
    if value.item is not None:
        found = found[value.item]
    return getattr(found, value.method)(*value.parameters) if value.method else found


def looks(
    draft: Draft, given: Mapping[str, Tensor], answer: Value, widened: Widened, shows: Shows
) -> Sample | None:
    """Return an element that shows the fault, None where none does or an op refuses.

    Where the fault begins in the first line, that line's result must be off as well: otherwise a
    cut would end in another fault than the one that was found.
    """
    if shows is Shows.REFUSED:
        return _refusal(draft, given, answer, widened)
    before = draft.written.get(answer) if shows is Shows.UNCHANGED else None
    if shows is Shows.UNCHANGED and before is None:
        return None
    wanted = (answer, *([draft.cause] if draft.cause else []))
    try:
        low, *low_cause = run(draft.lines, given, (), *wanted)
        high, *high_cause = run(draft.lines, given, widened, *wanted)
        bad = bad_elements(shows, low, high, None if before is None else given[before])
        caused = all(map(_has_moved, low_cause, high_cause))
    except REFUSALS:
        return None
    if low.is_complex() or not caused or not bool(bad.any()):
        return None
    return _sample(bad, low, high)


def _refusal(
    draft: Draft, given: Mapping[str, Tensor], answer: Value, widened: Widened
) -> Sample | None:
    """Return a sample without numbers where the lines raise, and run in the wider format."""
    try:
        run(draft.lines, given, widened, answer)
    except REFUSALS:
        return None
    try:
        run(draft.lines, given, (), answer)
    except REFUSALS:
        return Sample(bad=0, total=0, index=(), as_run=math.nan, wide=math.nan)
    return None


def _has_moved(low: Tensor, high: Tensor) -> bool:
    return bool(((low - high).abs() > MOVED * high.abs()).any())


def _sample(bad: Tensor, low: Tensor, high: Tensor) -> Sample:
    weight = torch.where(bad & torch.isfinite(high), high.double().abs(), -1.0)
    flat = int((weight if bool((weight >= 0).any()) else bad.double()).reshape(-1).argmax())
    return Sample(
        bad=int(bad.sum()),
        total=bad.numel(),
        index=unravel(flat, tuple(bad.shape)),
        as_run=float(low.reshape(-1)[flat]),
        wide=float(high.reshape(-1)[flat]),
    )


def bad_elements(shows: Shows, low: Tensor, high: Tensor, before: Tensor | None) -> Tensor:
    """Return a mask of the elements that show the fault."""
    finite = torch.isfinite(high)
    if shows is Shows.NONFINITE:
        return ~torch.isfinite(low) & finite
    if shows is Shows.NONFINITE_IN_BOTH:
        return ~torch.isfinite(low) & ~finite
    if shows is Shows.ZERO:
        return (low == 0) & (high != 0) & finite
    if shows is Shows.INTEGER:
        return (high == high.round()) & (low != high) & finite
    if shows is Shows.UNCHANGED:
        assert before is not None, "what is compared with"
        return (low == before) & (high != before) & finite
    return (low - high).abs() > off_limit(low.dtype) * high.abs()


def off_limit(dtype: torch.dtype) -> float:
    """Return the relative error above which a result is off by more than a rounding or two."""
    name = FORMAT_NAMES.get(dtype)
    return OFF_BY * get_format(name).eps / 2 if name else 0.0
