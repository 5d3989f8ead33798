"""The pictures of a page, each drawn from the diagnosis alone, with a table behind it.

Must not know where on a page they stand.
"""

from __future__ import annotations

from collections.abc import Callable

from fp16doctor.report.pictures import heat_map, range_map, stream, time_line, trajectory
from fp16doctor.report.view_model import PictureView
from fp16doctor.schema.diagnosis import Diagnosis

_DRAWN: tuple[Callable[[Diagnosis], PictureView | None], ...] = (
    range_map.picture,
    heat_map.picture,
    time_line.picture,
    trajectory.picture,
    stream.picture,
)


def pictures(diagnosis: Diagnosis) -> tuple[PictureView, ...]:
    """Return the pictures that the diagnosis has numbers for."""
    drawn = (draw(diagnosis) for draw in _DRAWN)
    return tuple(p for p in drawn if p is not None)
