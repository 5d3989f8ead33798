"""Moves inputs that the script has let go of from memory into a temporary file, mapped.

A step of many micro-batches is replayed from all of them. The file has no name any more once it is
mapped: nothing is left behind. Must not know when.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch

from fp16doctor.record import own
from fp16doctor.record.roll import Roll
from fp16doctor.record.weight import only_ours

SMALLEST = 2**20  # bytes; smaller inputs stay in memory


def spill(roll: Roll) -> None:
    """Move what the roll alone holds; what cannot be moved stays where it is."""
    for number, leaf in roll.leaves.items():
        storage = leaf.storage
        if leaf.copy is not None or leaf.on_disk or storage.device.type != "cpu":
            continue
        if storage.nbytes() < SMALLEST or not only_ours(roll, number, leaf):
            continue
        mapped = _mapped(storage)
        if mapped is None:
            return
        leaf.storage, leaf.on_disk = mapped, True
        roll.on_disk += mapped.nbytes()


def _mapped(storage: Any) -> Any:
    """Return a storage with the same bytes in a file, None where there is no place for one."""
    if os.name != "posix":  # elsewhere a mapped file cannot be removed
        return None
    name = ""
    try:
        with tempfile.NamedTemporaryFile(prefix="fp16doctor-", delete=False) as file:
            name = file.name
            file.write(own.empty(0, dtype=torch.uint8).set_(storage).numpy().data)
        return torch.UntypedStorage.from_file(name, False, storage.nbytes())
    except (OSError, RuntimeError):
        return None
    finally:
        if name:
            os.unlink(name)
