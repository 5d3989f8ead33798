"""Which tensors were computed in a kept place, and each of them cast for the places outside it.

Must not know which places are kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from fp16doctor.apply.values import mapped, tensors_in


class CastOnLeaving:
    """Remembers fp32 results as long as they live; each is cast once, so that gradients add up."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._cast: Any = WeakIdKeyDictionary()  # tensor -> its cast, None before

    def made(self, result: Any) -> Any:
        """Note what a kept call returned, and return it."""
        for tensor in tensors_in(result):
            if tensor.dtype is torch.float32:
                self._cast.setdefault(tensor, None)
        return result

    def taken(self, given: Any) -> Any:
        """Return the arguments of a call outside with such tensors in the format they leave in."""
        return mapped(given, self._outside)

    def _outside(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value not in self._cast:
            return value
        if self._cast[value] is None:
            self._cast[value] = value.to(self._dtype)
        return self._cast[value]
