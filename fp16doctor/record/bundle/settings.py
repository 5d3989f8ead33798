"""What of torch's settings changes the bits of a step.

Must not know tapes.
"""

from __future__ import annotations

import torch

from fp16doctor.schema.bundle import MATMUL_PRECISION


def threads() -> int:
    """Return how many threads cut a sum on the CPU."""
    return torch.get_num_threads()


def settings() -> dict[str, str]:
    """Return the settings by name; to be asked while the script's own hold."""
    return {
        MATMUL_PRECISION: torch.get_float32_matmul_precision(),
        "deterministic algorithms": _word(torch.are_deterministic_algorithms_enabled()),
        "TF32": _word(torch.backends.cudnn.allow_tf32),
    }


def _word(on: bool) -> str:
    return "on" if on else "off"
