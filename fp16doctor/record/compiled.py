"""How much of the script ``torch.compile`` has compiled: what runs there is not seen op by op.

Must not know recordings.
"""

from __future__ import annotations

import sys

from torch import nn

WITHOUT = (
    "TORCH_COMPILE_DISABLE=1 in front of the command runs the script without torch.compile, and "
    "each op gets its module and its line"
)


def compiled_frames() -> int:
    """Return how many Python frames were compiled in this process so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", {})
    return int(counters["frames"]["ok"]) if "frames" in counters else 0


def is_compiled_graph(module: nn.Module) -> bool:
    """Tell whether a module is the traced graph that a backend of ``torch.compile`` runs."""
    kind = type(module)
    return kind.__name__ == "GraphModule" and kind.__module__.startswith("torch.fx")
