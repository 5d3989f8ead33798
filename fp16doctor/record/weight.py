"""How much memory the rolling tape alone keeps from being freed.

What the script holds as well costs nothing: a model, a batch that backward will need. Memory that
numpy holds is counted all the same; nothing tells.

Must not know steps or bounds.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from fp16doctor.record.roll import EARLY_COPY, NO_STORAGE, LeafStorage, Roll


def weigh(roll: Roll) -> int:
    """Return the bytes of memory that would be freed with the roll.

    Copies made before writes, and what lies on disk, are not counted.
    """
    roll.fresh = 0
    snapshots = sum(map(_size, roll.snapshots.values()))
    return snapshots + sum(_weight(roll, n, leaf) for n, leaf in roll.leaves.items())


def _weight(roll: Roll, number: int, leaf: LeafStorage) -> int:
    if leaf.on_disk:
        return 0
    size = _size(leaf.storage)
    early = size if leaf.copy is not None and size <= EARLY_COPY else 0
    return early + size * only_ours(roll, number, leaf)


def only_ours(roll: Roll, number: int, leaf: LeafStorage) -> bool:
    """Tell whether the tape has the last reference; to a parameter it has the tensor itself."""
    if number in roll.params:
        return sys.getrefcount(roll.params[number]) <= _REFERENCES
    return torch._C._storage_Use_Count(leaf.storage._cdata) <= 1


def _size(storage: Any) -> int:
    try:
        return 0 if storage.device.type == "meta" else int(storage.nbytes())
    except NO_STORAGE:
        return 0  # there is no memory behind it


# To a parameter of the roll: the roll's, getrefcount's.
_REFERENCES = 2
