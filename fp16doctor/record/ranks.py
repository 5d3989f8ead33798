"""Which of several training processes this one is: as its launcher and torch.distributed say.

Must not know what is recorded, nor where a report goes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from fp16doctor.schema.recording import Caution

Ranks = tuple[int, int]  # (rank, processes that train together)

ALONE: Ranks = (0, 1)
# What launchers set: torchrun (accelerate, deepspeed and Lightning likewise), Open MPI.
_VARIABLES = (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))


def launched_as(environment: Mapping[str, str] = os.environ) -> Ranks:
    """Return what the launcher has told this process; ``ALONE`` where none has."""
    for names in _VARIABLES:
        rank, size = (environment.get(name, "") for name in names)
        if rank.isdecimal() and size.isdecimal() and int(rank) < int(size):
            return int(rank), int(size)
    return ALONE


def joined() -> Ranks | None:
    """Return the place in the process group that is open now, None where there is none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


def cautions(ranks: Ranks) -> tuple[Caution, ...]:
    """Return what the report says where other processes trained along."""
    rank, size = ranks
    if size < 2:
        return ()
    return (
        Caution(
            "other-ranks",
            f"one rank of {size} was seen, rank {rank}; what the others add to a gradient is taken "
            "from the run, and where that is inf or NaN a trial has each add what this one adds",
        ),
    )
