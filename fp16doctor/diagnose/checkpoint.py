"""Which tensors of a checkpoint a format cannot hold as they are.

Must not know how a file is read.
"""

from __future__ import annotations

from fp16doctor.schema.checkpoint import StoredTensor, StoredWeights


def affected(weights: StoredWeights) -> tuple[StoredTensor, ...]:
    """Tensors that a format cannot hold as they are, or that hold inf or NaN already."""
    return tuple(t for t in weights.tensors if t.n_nonfinite or not all(f.harmless for f in t.fits))
