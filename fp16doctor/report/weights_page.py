"""A file of weights as a text table by tensor, or as JSON.

Must not know how the file was read or judged.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence

from fp16doctor.report import wording
from fp16doctor.schema.checkpoint import Fit, StoredTensor, StoredWeights
from fp16doctor.schema.diagnosis import FormatLimits

SCHEMA_VERSION = 1
_HEAD = ("tensor", "shape", "stored", "amax", "smallest", "non-finite")


def weights_text(weights: StoredWeights, shown: Sequence[StoredTensor]) -> str:
    """Table of the tensors ``shown``, then one sentence a format."""
    formats = [f.name for f in weights.formats]
    rows = [(*_HEAD, *[f"{f} {w}" for f in formats for w in ("overflow", "subnormal", "zero")])]
    rows += [_row(t) for t in shown]
    lines = [*_aligned(rows), ""] if shown else []
    lines += [_sentence(weights, f) for f in weights.formats]
    n = len(weights.tensors)
    others = (
        f" · {wording.plural(weights.n_other, 'tensor')} of other kinds" if weights.n_other else ""
    )
    left = f" · {wording.count(n - len(shown))} without a loss not listed" if len(shown) < n else ""
    lines.append(f"{wording.plural(n, 'floating-point tensor')}{left}{others}")
    return "\n".join(lines) + "\n"


def _row(tensor: StoredTensor) -> tuple[str, ...]:
    shape = "×".join(map(str, tensor.shape)) or "scalar"
    smallest = None if tensor.amin_nonzero == float("inf") else tensor.amin_nonzero
    cells = [wording.visible(tensor.name), shape, tensor.dtype, wording.number(tensor.amax)]
    cells += [wording.number(smallest), _share(tensor.n_nonfinite, tensor)]
    for fit in tensor.fits:
        cells += [_share(n, tensor) for n in (fit.n_overflow, fit.n_subnormal, fit.n_zero)]
    return tuple(cells)


def _share(part: int, tensor: StoredTensor) -> str:
    return wording.of_total(part, tensor.numel) if part else wording.NOTHING


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    used = [
        i for i in range(len(rows[0])) if i < 5 or any(r[i] != wording.NOTHING for r in rows[1:])
    ]
    widths = [max(len(row[i]) for row in rows) for i in used]
    return [
        "  ".join(r[i].ljust(w) for i, w in zip(used, widths, strict=True)).rstrip() for r in rows
    ]


def _sentence(weights: StoredWeights, limits: FormatLimits) -> str:
    name, largest, normal = limits.name, limits.max, limits.smallest_normal
    fits = [f for t in weights.tensors for f in t.fits if f.format == name]
    total = sum(t.numel for t in weights.tensors)
    parts = [
        _part(fits, "n_overflow", total, f"above the maximum {wording.limit(largest)}"),
        _part(fits, "n_subnormal", total, f"subnormal, below {wording.limit(normal)}"),
        _part(fits, "n_zero", total, "become zero"),
    ]
    if not total:
        return f"{name}: there is no floating-point value to cast"
    said = "; ".join(p for p in parts if p)
    return f"{name}: {said}" if said else f"{name}: every value is in the normal range"


def _part(fits: Iterable[Fit], field: str, total: int, words: str) -> str:
    counts = [getattr(f, field) for f in fits]
    if not sum(counts):
        return ""
    tensors = wording.plural(sum(1 for c in counts if c), "tensor")
    return f"{wording.of_total(sum(counts), total)} values in {tensors} {words}"


def weights_json(weights: StoredWeights) -> str:
    """Everything that was measured; inf and NaN as strings."""
    document = {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(weights)}
    for tensor in document["tensors"]:
        if tensor["amin_nonzero"] == float("inf"):
            tensor["amin_nonzero"] = None
    return json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
