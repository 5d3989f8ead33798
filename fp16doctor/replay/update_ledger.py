"""What stored 16-bit tensors made of their intended updates, summed over the examined steps.

A rounding error that comes back with the same sign step after step is lost movement; one that is
random (stochastic rounding) averages out. Single steps cannot tell the two apart, sums can: n
independent errors grow like √n, a persistent one like n.

A tensor that followed for long may stop: its value has grown, or its updates have become small.
So the last examined steps are summed for themselves as well, from the first of them on in which
less than half arrived.

Must not know how a step is replayed, nor words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fp16doctor.replay.rebound import Chains, Name
from fp16doctor.schema.precision import Standstill, UpdateLoss

STANDS = 0.5  # realised fraction of one step below which a tensor is taken to stand still
SAMPLE = 2048  # elements of a tensor that are followed


@dataclass(slots=True)
class _Entry:
    loss: UpdateLoss
    moved: Tensor  # Σ Δ over the steps, float64, sampled
    intended: Tensor  # Σ Δref
    error2: float  # Σ ‖Δ − Δref‖² of the single steps, sampled
    still: _Still | None = None  # None: the last step moved it

    def follow(self, loss: UpdateLoss, a: Tensor, b: Tensor) -> None:
        """Add a step to those in which the tensor stood still, or end them."""
        if loss.realised >= STANDS or not loss.norm2:
            self.still = None
        elif self.still is None:
            self.still = _Still([loss], b - a)
        else:
            self.still.losses.append(loss)
            self.still.missed += b - a


@dataclass(slots=True)
class _Still:
    losses: list[UpdateLoss]
    missed: Tensor  # Σ (Δref − Δ), float64, sampled

    def facts(self) -> Standstill:
        first, last = self.losses[0], self.losses[-1]
        norm2 = sum(u.norm2 for u in self.losses)
        span = last.site.step - first.site.step
        gap = float(self.missed.norm()) / len(self.losses) * _steps_worth(last.retention, span)
        return Standstill(
            first=first.site.step,
            last=last.site.step,
            steps=len(self.losses),
            realised=sum(u.dot for u in self.losses) / norm2,
            missed=gap / last.size if last.size else 0.0,
            relative_update=last.relative_update,
        )


def _steps_worth(kept: float, span: int) -> float:
    """Return Σ keptⁿ, n < span: an average comes nearer and moves less, a sum goes on."""
    return float(span) if kept >= 1.0 else (1.0 - kept**span) / (1.0 - kept)


class UpdateLedger:
    """Sums by tensor; a tensor is known by the address of its storage and its shape.

    One that every step makes anew is known by the line that makes it (``rebound``).
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[int | Name, int], _Entry] = {}
        self.chains = Chains()

    def add(self, key: int | Name, loss: UpdateLoss, a: Tensor, b: Tensor) -> None:
        """Add one step of one tensor; ``a`` and ``b`` are samples of Δ and Δref."""
        error2 = float(((a - b) ** 2).sum())
        known = self._entries.get((key, loss.total))
        if known is None:
            known = self._entries[key, loss.total] = _Entry(loss, a.clone(), b.clone(), error2)
            known.follow(loss, a, b)
            return
        known.moved += a
        known.intended += b
        known.error2 += error2
        known.loss = _sum(known.loss, loss)
        known.follow(loss, a, b)

    def found(self) -> tuple[UpdateLoss, ...]:
        """Return all tensors that should have moved, with what remained over the steps."""
        return tuple(
            _with_bias(entry)
            for (key, _), entry in self._entries.items()
            if entry.loss.norm2 > 0 and (isinstance(key, int) or self.chains.confirmed(key))
        )


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
        size=more.size,
    )


def _with_bias(entry: _Entry) -> UpdateLoss:
    error = float((entry.moved - entry.intended).norm())
    intended = float(entry.intended.norm())
    persistence = error**2 / entry.error2 if entry.error2 else 0.0
    return replace(
        entry.loss,
        bias=error / intended if intended else None,
        persistence=persistence,
        standstill=entry.still.facts() if entry.still is not None else None,
    )


def sample(values: Tensor) -> Tensor:
    """Return at most SAMPLE elements in float64, evenly spread; non-finite ones as 0."""
    flat = values.reshape(-1)
    stride = max(flat.numel() // SAMPLE, 1)
    return torch.nan_to_num(flat[::stride][:SAMPLE].double(), nan=0.0, posinf=0.0, neginf=0.0)
