"""How much memory the rolling tape alone keeps from being freed.

What the script holds as well costs nothing: a model, a batch that backward will need. Memory that
numpy holds is counted all the same; nothing tells.

Must not know steps or bounds.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from fp16doctor.record.roll import EARLY_COPY, NO_STORAGE, LeafStorage, Roll


def weigh(roll: Roll) -> int:
    """Return the bytes that would be freed with the roll, but for copies made before writes."""
    roll.fresh = 0
    snapshots = sum(map(_size, roll.snapshots.values()))
    return snapshots + sum(_weight(roll, n, leaf) for n, leaf in roll.leaves.items())


def _weight(roll: Roll, number: int, leaf: LeafStorage) -> int:
    size = _size(leaf.storage)
    early = size if leaf.copy is not None and size <= EARLY_COPY else 0
    return early + size * _only_ours(roll.params.get(number), leaf.storage)


def _only_ours(parameter: Tensor | None, storage: Any) -> bool:
    """Tell whether the tape has the last reference; to a parameter it has the tensor itself."""
    if parameter is not None:
        return sys.getrefcount(parameter) <= _REFERENCES
    return torch._C._storage_Use_Count(storage._cdata) <= 1


def _size(storage: Any) -> int:
    try:
        return 0 if storage.device.type == "meta" else int(storage.nbytes())
    except NO_STORAGE:
        return 0  # there is no memory behind it


# To a parameter of the roll: the roll's, the name above, the caller's temporary, getrefcount's.
_REFERENCES = 4
