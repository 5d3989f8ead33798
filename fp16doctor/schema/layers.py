"""How one layer with a weight changes the size of what passes through it, in the first step.

Must not know what sizes are right (``diagnose``).
"""

from __future__ import annotations

from dataclasses import dataclass

from fp16doctor.schema.location import OpSite


@dataclass(frozen=True, slots=True)
class LayerGain:
    """A product with, or a convolution by, a parameter, as it is in the reference run."""

    site: OpSite
    weight: str  # parameter FQN
    fan_in: int  # products summed up in one output element
    weight_rms: float
    input_rms: float
    output_rms: float

    @property
    def he_factor(self) -> float:
        """Weight RMS in units of √(2 / fan_in): He et al., arXiv 1502.01852, eq. 10."""
        return float(self.weight_rms * (self.fan_in / 2) ** 0.5)
