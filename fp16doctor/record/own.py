"""torch's functions as they were when fp16doctor was imported, for what is done between two ops.

A script may put others in their place. Must not know what they are called for.
"""

from torch import (
    aminmax,
    arange,
    bincount,
    bitwise_and,
    bitwise_or,
    bitwise_right_shift,
    cat,
    count_nonzero,
    empty,
    get_autocast_dtype,
    inference_mode,
    is_autocast_enabled,
    is_grad_enabled,
    maximum,
    no_grad,
    ones,
    stack,
    view_as_real,
    where,
    zeros,
)

__all__ = [
    "aminmax",
    "arange",
    "bincount",
    "bitwise_and",
    "bitwise_or",
    "bitwise_right_shift",
    "cat",
    "count_nonzero",
    "empty",
    "get_autocast_dtype",
    "inference_mode",
    "is_autocast_enabled",
    "is_grad_enabled",
    "maximum",
    "no_grad",
    "ones",
    "stack",
    "view_as_real",
    "where",
    "zeros",
]
