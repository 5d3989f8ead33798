"""Where a tensor lies; of a DTensor the shard that this rank holds, whose ops are recorded.

Must not know what a shard is needed for.
"""

from __future__ import annotations

from torch import Tensor


def shard_of(tensor: Tensor) -> Tensor:
    """Return the local tensor of a DTensor, every other tensor itself."""
    local = getattr(tensor, "_local_tensor", tensor)
    return local if isinstance(local, Tensor) else tensor


def address_of(tensor: Tensor) -> int | None:
    """Return the address of a tensor's storage, None where it has none of its own."""
    try:
        return int(shard_of(tensor).untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError, ValueError):  # sparse, uninitialised, wrapped
        return None


def note_address(
    table: dict[int, tuple[str, bool, bool]], name: str, t: Tensor, trains: bool, *, buffer: bool
) -> bool:
    """Enter one tensor; False if its storage is known already, or it has none."""
    key = address_of(t)
    if key is None or key in table:
        return False
    table[key] = (name, trains, buffer)
    return True
