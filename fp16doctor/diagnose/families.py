"""Which family an ATen op belongs to, and which rule an event belongs to.

Must not know severities or words.
"""

from __future__ import annotations

import math

from fp16doctor.diagnose.limits import limits
from fp16doctor.schema.location import Phase
from fp16doctor.schema.trace import Event, EventKind

# Ops that add or multiply many elements into one.
REDUCTIONS = frozenset(
    [
        "sum",
        "nansum",
        "mean",
        "nanmean",
        "norm",
        "linalg_vector_norm",
        "linalg_norm",
        "linalg_matrix_norm",
        "var",
        "std",
        "var_mean",
        "std_mean",
        "cumsum",
        "cumprod",
        "prod",
        "logsumexp",
        "logcumsumexp",
        "dist",
        "cdist",
        "cdist_forward",
        "trace",
        "scatter_add",
        "index_add",
        "scatter_reduce",
        "segment_reduce",
        "embedding_bag",
    ]
)
NORMS = frozenset(["norm", "linalg_vector_norm", "linalg_norm", "linalg_matrix_norm", "dist"])
# Ops that put a constant into a tensor or add one to it.
FILLS = frozenset(
    ["masked_fill", "where", "fill", "full", "full_like", "new_full", "scalar_tensor"]
)
ADDITIONS = frozenset(["add", "sub", "rsub", "baddbmm", "addmm", "addbmm"])
CASTS = frozenset(["to_copy", "copy"])
BATCHED_PRODUCTS = frozenset(["bmm", "baddbmm", "addbmm"])
SQUARES = frozenset(["pow", "square"])
EXPONENTIALS = frozenset(["exp", "expm1", "exp2", "sinh", "cosh"])
DIVISIONS = frozenset(["div", "true_divide", "reciprocal", "rsqrt", "addcdiv"])
LOGARITHMS = frozenset(["log", "log2", "log10", "log1p", "xlogy"])
OVERFLOWS = frozenset({EventKind.OVERFLOW, EventKind.INTERNAL_OVERFLOW})
GRADIENT_PHASES = frozenset({Phase.BACKWARD, Phase.OPTIMIZER})

# A cast of a negative constant at least this large is a mask, not data.
_CAST_MASK = 1e6


def base_op(op: str) -> str:
    """Name of an op without namespace, overload and in-place mark: aten.add_.Tensor -> add."""
    parts = op.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name.strip("_").removeprefix("foreach_")


def rule_of(event: Event) -> str:
    """Name of the one rule that speaks about ``event``; empty for an intended infinity."""
    if event.kind is EventKind.INTENDED:
        return ""
    if event.kind is EventKind.HEALED:
        return "healed-nonfinite"
    if event.kind is EventKind.LOGIC:
        return "logic-nan" if event.stored is None else "rounded-onto-boundary"
    if event.kind is EventKind.BOUNDARY:
        return "rounded-onto-boundary" if on_boundary(event) else "nan-birth"
    return _overflow_rule(event) if event.kind in OVERFLOWS else "nan-birth"


def _overflow_rule(event: Event) -> str:
    if event.site.phase in GRADIENT_PHASES:
        return "gradient-overflow"
    if is_mask_fill(event):
        return "mask-fill-overflow"
    if event.kind is EventKind.INTERNAL_OVERFLOW or base_op(event.site.op) in REDUCTIONS:
        return "reduction-overflow"
    return "activation-overflow"


def is_mask_fill(event: Event) -> bool:
    """Whether a mask value, not a computed one, passed the limit of the format."""
    if event.kind is not EventKind.OVERFLOW:
        return False
    if event.constant is not None:
        return _is_filled_constant(event, event.constant)
    return _adds_to_mask(event)


def _is_filled_constant(event: Event, constant: float) -> bool:
    """The result is the constant itself (also: a 0/1 mask times it), or the constant is added."""
    if base_op(event.site.op) in FILLS | ADDITIONS:
        return True
    return event.exact is not None and math.isclose(abs(event.exact), abs(constant), rel_tol=1e-6)


def _adds_to_mask(event: Event) -> bool:
    """A negative operand near the limit that no rounding touched: finfo.min plus a bias."""
    if event.exact is None or not event.exact < 0:
        return False
    op = base_op(event.site.op)
    if op in CASTS:
        return event.exact <= -_CAST_MASK and _has_constant_below(event, -_CAST_MASK)
    half = limits(event.format).max / 2
    return op in FILLS | ADDITIONS and _has_constant_below(event, -half)


def _has_constant_below(event: Event, bound: float) -> bool:
    return any(run <= bound and run == reference for _, run, reference in event.operands)


def is_square(event: Event) -> bool:
    """A power, or a product of a value with itself."""
    op = base_op(event.site.op)
    values = [run for _, run, _ in event.operands]
    return op in SQUARES or (op == "mul" and len(values) == 2 and values[0] == values[1])


def moved_operand(event: Event) -> tuple[str, float, float] | None:
    """The operand that rounding moved onto 0, 1 or −1: (role, as run, in the reference).

    The last one is taken: in a quotient it is the divisor.
    """
    on = [o for o in event.operands if abs(o[1]) in (0.0, 1.0) and o[1] != o[2]]
    return on[-1] if on else None


def changed_operand(event: Event) -> tuple[str, float, float] | None:
    """The operand that differs most from the reference, relative to it."""
    changed = [o for o in event.operands if o[1] != o[2]]
    return max(changed, key=lambda o: abs(o[1] - o[2]) / max(abs(o[2]), 1e-300), default=None)


def on_boundary(event: Event) -> bool:
    """Whether an operand sits exactly on a pole or a 0/0 because it was rounded onto it."""
    if moved_operand(event) is not None:
        return True
    if event.cause_as_run is not None and abs(event.cause_as_run) in (0.0, 1.0):
        return True
    return not event.operands and event.exact is not None and math.isinf(event.exact)
