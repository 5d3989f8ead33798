"""Reads a pickle of torch.save whose classes are not to be loaded: each is replaced by a container.

No code of the file runs: torch's restricted unpickler is given ``Inert`` for every name that it
does not trust, and builds those in place of the file's own objects. Must not know what is looked
for in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch


class Inert:
    """Stands in for an object of the file; holds what the object was built from."""

    def __init__(self, *arguments: object, **named: object) -> None:
        self.parts: dict[object, object] = dict(enumerate(arguments))
        self.parts.update(named)

    def __setstate__(self, state: object) -> None:
        """Take the attributes: a dict, or a pair of a dict and of slots."""
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, Mapping):
                self._add(part)
            elif part is not None:
                self.parts["state"] = part

    def _add(self, items: Mapping[object, object]) -> None:
        if not hasattr(self, "parts"):  # built without a call
            self.parts = {}
        self.parts.update(items)


def load_inert(path: Path) -> object:
    """Load a ``torch.save`` file with ``Inert`` in place of each object of an unknown class.

    Raises:
        ValueError: no such file, or one of the format before torch 1.6.
        pickle.UnpicklingError: the pickle asks for what not even a stand-in may answer.
    """
    names = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    with torch.serialization.safe_globals([(Inert, name) for name in names]):
        return torch.load(path, map_location="cpu", weights_only=True)
