"""Formats of forward values, remembered until their gradients come back.

Autograd gives a gradient the dtype of the tensor it belongs to. A tape does not name that tensor;
it is one of the values of its size that ops of the same line and module took in forward. Where
those values had one format, the gradient has it too; where they had several, nothing is said.

Must not know keep rules.
"""

from __future__ import annotations

from math import prod

import torch

from fp16doctor.replay.values import HALF
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.tape import OpCall, TensorRef

_Key = tuple[str | None, str, int, int, str]


class Borders:
    """What one replay's forward ops took in."""

    def __init__(self) -> None:
        self._seen: dict[_Key, set[torch.dtype]] = {}

    def note(self, call: OpCall, ref: TensorRef, dtype: torch.dtype) -> None:
        """Remember the format in which an op of forward got an argument recorded in 16 bits."""
        if ref.dtype in HALF and call.site.phase in (Phase.FORWARD, Phase.LOSS):
            self._seen.setdefault(_key(call.site, ref), set()).add(dtype)

    def of_gradient(self, call: OpCall, ref: TensorRef) -> torch.dtype | None:
        """Return the format of a result of backward, None where it is not known."""
        if ref.dtype not in HALF or call.site.phase is not Phase.BACKWARD:
            return None
        found = self._seen.get(_key(call.site, ref), set())
        return next(iter(found)) if len(found) == 1 else None


def _key(site: OpSite, ref: TensorRef) -> _Key:
    line = site.source
    file, number = (line.file, line.line) if line is not None else ("", 0)
    return site.module_path, file, number, prod(ref.shape), ref.dtype
