"""Which tensors of a checkpoint a format cannot hold as they are.

Must not know how a file is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.schema.checkpoint import StoredTensor, StoredWeights
from fp16doctor.schema.finding import Severity


def affected(weights: StoredWeights) -> tuple[StoredTensor, ...]:
    """Tensors that a format cannot hold as they are, or that hold inf or NaN already."""
    return tuple(t for t in weights.tensors if t.n_nonfinite or not all(f.harmless for f in t.fits))


def severities(weights: StoredWeights) -> Iterator[Severity]:
    """How severe each loss is: error where a value is or becomes inf or NaN, else warning."""
    for tensor in affected(weights):
        lost = tensor.n_nonfinite or any(fit.n_overflow for fit in tensor.fits)
        yield Severity.ERROR if lost else Severity.WARNING
