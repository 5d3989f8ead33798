"""How large a residual stream is from block to block, as run and under a cure.

Must not know how it is measured (``replay.stream``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamSize:
    """The stream behind one addition, in fp32."""

    std: float  # standard deviation over all elements
    amax: float  # largest magnitude; not finite where an element is not


@dataclass(frozen=True, slots=True)
class StreamBlock:
    """One addition that closes a block's branch, in the order of the forward pass."""

    place: str  # module FQN; "" in the root's own forward or outside modules
    before: StreamSize  # as run
    after: StreamSize  # under the cure
