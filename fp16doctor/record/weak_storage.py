"""A storage known by its address, which is kept from being reused while its memory may go.

Must not know tapes.
"""

from __future__ import annotations

from typing import Any

import torch

_free = torch.UntypedStorage._free_weak_ref


class WeakStorage(int):
    """The address of a storage, kept from being reused; its memory is not kept.

    An ``int``, because the garbage collector need not look at those.
    """

    __slots__ = ()

    def __new__(cls, storage: Any) -> WeakStorage:
        """Take a weak reference, given back with the object."""
        return int.__new__(cls, storage._weak_ref())

    def __del__(self) -> None:
        _free(int(self))  # type: ignore[no-untyped-call]  # torch leaves it untyped

    @property
    def cdata(self) -> int:
        """The address."""
        return int(self)

    def expired(self) -> bool:
        """Tell whether the memory is gone."""
        return bool(torch.UntypedStorage._expired(int(self)))

    def storage(self) -> Any:
        """Return the storage if it still exists, else None."""
        return None if self.expired() else torch.UntypedStorage._new_with_weak_ptr(int(self))
