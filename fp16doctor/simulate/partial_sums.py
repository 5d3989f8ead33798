"""How large a partial sum inside a 16-bit product can have become.

A GPU kernel may split a sum over K products, or sum in 16 bits; what it then holds on the way is
at most K · amax · amax. Must not know which products are watched.
"""

from __future__ import annotations

import math

from torch import Tensor

LEFT_AT = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # where the left factor is given


class PartialSums:
    """``bound`` is the largest so far, ``terms`` the K it belongs to."""

    def __init__(self) -> None:
        self.bound = 0.0
        self.terms = 0

    def see(self, factors: list[Tensor]) -> None:
        """Take the factors of one product, [..., N, K] and [..., K, M], in fp32.

        Non-finite factors say nothing: they are a matter of where they came from.
        """
        left, right = factors
        if not left.numel() or not right.numel():
            return
        terms = left.shape[-1]
        bound = terms * _amax(left) * _amax(right)
        if math.isfinite(bound) and bound > self.bound:
            self.bound, self.terms = bound, terms


def _amax(tensor: Tensor) -> float:
    low, high = tensor.aminmax()
    return max(abs(low.item()), abs(high.item()))
