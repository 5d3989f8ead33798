"""How much of the script ``torch.compile`` has compiled: what runs there is not seen op by op.

Must not know recordings.
"""

from __future__ import annotations

import sys


def compiled_frames() -> int:
    """Return how many Python frames were compiled in this process so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", {})
    return int(counters["frames"]["ok"]) if "frames" in counters else 0
