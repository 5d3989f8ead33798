"""Which tensor of one step is the same tensor in a later one.

A storage is known by its address, and a freed address is given out again: what a step leaves at
one is carried on to a later step only if that finds the very same bytes there.

Must not know what is carried on (``replay.trajectory``).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fp16doctor.schema.tape import Tape

Print = tuple[int, int]  # bytes, their sum as words


class Links:
    """What consecutive steps left behind."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[Print, int]] = {}  # address -> (print, step that wrote it)

    def note(self, tape: Tape) -> None:
        """Remember what a step wrote and the script held at its end."""
        for number, key in tape.keys.items():
            if number in tape.final:
                self._left[key] = (_print(tape.final[number]), tape.step)

    def check(self, tape: Tape, earlier: list[Tape]) -> None:
        """Cut the links of ``earlier`` steps to storages that hold something else by now."""
        for leaf in tape.leaves.values():
            known = self._left.get(leaf.key)
            if known is None or known[0] == _print(leaf.data):
                continue
            del self._left[leaf.key]
            for place, other in enumerate(earlier):
                keys = {n: k for n, k in other.keys.items() if k != leaf.key}
                earlier[place] = replace(other, keys=keys)


def _print(data: Tensor) -> Print:
    whole = data.numel() // 8 * 8
    words = int(data[:whole].view(torch.int64).sum()) if whole else 0
    return data.numel(), words + int(data[whole:].sum())
