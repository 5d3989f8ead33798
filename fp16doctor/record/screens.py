"""The unread extremes of one step, kept together by device and dtype to be read as one tensor.

Must not know which step, or how it was looked at.
"""

from __future__ import annotations

from torch import Tensor

from fp16doctor.record.range_stats import PendingScreen
from fp16doctor.record.range_track import Track


class Screens:
    """The open step's extremes of one device and dtype: read as one tensor."""

    def __init__(self) -> None:
        self.lows: list[Tensor] = []
        self.highs: list[Tensor] = []
        self._tracks: list[list[Track]] = []

    def add(self, tracks: list[Track], found: PendingScreen) -> None:
        """Take one tensor's extremes."""
        self._tracks.append(tracks)
        self.lows.append(found.low)
        self.highs.append(found.high)

    def deliver(self, values: list[float]) -> None:
        """Tell the tracks: ``values`` are all ``lows``, then all ``highs``."""
        lows, highs = values[: len(self.lows)], values[len(self.lows) :]
        for tracks, low, high in zip(self._tracks, lows, highs, strict=True):
            magnitude = PendingScreen.finish(low, high)
            for track in tracks:
                track.screened(magnitude)
