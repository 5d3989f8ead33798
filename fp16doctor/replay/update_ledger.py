"""What stored 16-bit tensors made of their intended updates, summed over the examined steps.

A rounding error that comes back with the same sign step after step is lost movement; one that is
random (stochastic rounding) averages out. Single steps cannot tell the two apart, sums can: n
independent errors grow like √n, a persistent one like n.

Must not know how a step is replayed, nor bounds or words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fp16doctor.schema.precision import UpdateLoss

SAMPLE = 2048  # elements of a tensor that are followed


@dataclass(slots=True)
class _Entry:
    loss: UpdateLoss
    moved: Tensor  # Σ Δ over the steps, float64, sampled
    intended: Tensor  # Σ Δref
    error2: float  # Σ ‖Δ − Δref‖² of the single steps, sampled


class UpdateLedger:
    """Sums by tensor; a tensor is known by the address of its storage and its shape."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], _Entry] = {}

    def add(self, key: int, loss: UpdateLoss, a: Tensor, b: Tensor) -> None:
        """Add one step of one tensor; ``a`` and ``b`` are samples of Δ and Δref."""
        error2 = float(((a - b) ** 2).sum())
        known = self._entries.get((key, loss.total))
        if known is None:
            self._entries[key, loss.total] = _Entry(loss, a, b, error2)
            return
        known.moved += a
        known.intended += b
        known.error2 += error2
        known.loss = _sum(known.loss, loss)

    def found(self) -> tuple[UpdateLoss, ...]:
        """Return all tensors that should have moved, with what remained over the steps."""
        return tuple(_with_bias(e) for e in self._entries.values() if e.loss.norm2 > 0)


def _sum(known: UpdateLoss, more: UpdateLoss) -> UpdateLoss:
    return replace(
        known,
        unchanged=known.unchanged + more.unchanged,
        underflows=max(known.underflows, more.underflows),
        should_move=known.should_move + more.should_move,
        dot=known.dot + more.dot,
        norm2=known.norm2 + more.norm2,
        steps=known.steps + 1,
        n_writes=max(known.n_writes, more.n_writes),
        name=known.name or more.name,
    )


def _with_bias(entry: _Entry) -> UpdateLoss:
    error = float((entry.moved - entry.intended).norm())
    intended = float(entry.intended.norm())
    persistence = error**2 / entry.error2 if entry.error2 else 0.0
    return replace(
        entry.loss,
        bias=error / intended if intended else None,
        persistence=persistence,
    )


def sample(values: Tensor) -> Tensor:
    """Return at most SAMPLE elements in float64, evenly spread; non-finite ones as 0."""
    flat = values.reshape(-1)
    stride = max(flat.numel() // SAMPLE, 1)
    return torch.nan_to_num(flat[::stride][:SAMPLE].double(), nan=0.0, posinf=0.0, neginf=0.0)
