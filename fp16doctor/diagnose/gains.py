"""Runs of consecutive layers whose weights make everything larger.

Must not know words.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from statistics import median

from fp16doctor.diagnose.rule import Observations
from fp16doctor.schema.layers import LayerGain

LARGER = 2.0  # times He's standard deviation, and growth from one layer's input to the next one's
SHORTEST = 4  # layers
_PASSED_ON = (0.2, 1.5)  # RMS of the next input over that of an output: what nonlinearities leave


@dataclass(frozen=True, slots=True)
class Run:
    """Layers in order, each fed by the one before."""

    layers: tuple[LayerGain, ...]

    @property
    def factor(self) -> float:
        """Growth from one input to the next: the median."""
        pairs = zip(self.layers, self.layers[1:], strict=False)
        return median(b.input_rms / a.input_rms for a, b in pairs)

    @property
    def he_factor(self) -> float:
        """Weight RMS over He's standard deviation: the median."""
        return median(layer.he_factor for layer in self.layers)

    @property
    def total(self) -> float:
        """Binades from the first input to the last output."""
        return log2(self.layers[-1].output_rms / self.layers[0].input_rms)


def growing_runs(seen: Observations) -> tuple[Run, ...]:
    """Return the runs of the first step that are long enough."""
    runs: list[list[LayerGain]] = []
    for trace in seen.traces:
        before: LayerGain | None = None
        for layer in trace.layers:
            if layer.he_factor < LARGER:
                before = None
                continue
            if before is not None and _grows(before, layer):
                runs[-1].append(layer)
            else:
                runs.append([layer])
            before = layer
    return tuple(Run(tuple(r)) for r in runs if len(r) >= SHORTEST)


def _grows(before: LayerGain, layer: LayerGain) -> bool:
    """Tell whether a layer takes what the one before gave, and takes in more than that did."""
    low, high = _PASSED_ON
    fed = low <= layer.input_rms / before.output_rms <= high
    return fed and layer.input_rms >= LARGER * before.input_rms
