"""What a replay must know of an ATen op by name: draws, masks, formats it insists on.

Must not know policies or tapes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from fp16doctor.errors import ReplayError

# Ops whose result is drawn: another policy takes the values the run drew.
_DRAWS = frozenset(
    [
        "bernoulli",
        "bernoulli_",
        "binomial",
        "cauchy_",
        "exponential_",
        "geometric_",
        "log_normal_",
        "multinomial",
        "normal",
        "normal_",
        "normal_functional",
        "poisson",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "random",
        "random_",
        "randperm",
        "uniform",
        "uniform_",
        "_standard_gamma",
        "_sample_dirichlet",
        "rrelu_with_noise",
        "rrelu_with_noise_",
    ]
)
_DROPOUTS = frozenset(["native_dropout"])
_UNSCALES = frozenset(["_amp_foreach_non_finite_check_and_unscale_"])
# Kernels that exist for the recorded formats only.
_OWN_FORMAT = frozenset(["_amp_update_scale_", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"])
# In-place ops that do not read what they overwrite.
_OVERWRITES = frozenset(
    [
        "copy_",
        "fill_",
        "zero_",
        "normal_",
        "uniform_",
        "bernoulli_",
        "random_",
        "exponential_",
        "_foreach_zero_",
        "_foreach_copy_",
        "cauchy_",
        "geometric_",
        "log_normal_",
    ]
)
# Kernels whose workspace depends on gradient mode.
_GRAD_MODE = frozenset(["mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn", "_thnn_fused_lstm_cell"])
_UNINITIALISED = frozenset(
    ["empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted"]
)
# Elementwise ops that torch does not tag as such.
_ELEMENTWISE = frozenset(
    [
        "_to_copy",
        "copy_",
        "fill_",
        "masked_fill_",
        "masked_fill",
        "mse_loss",
        "smooth_l1_loss",
        "huber_loss",
        "binary_cross_entropy",
        "binary_cross_entropy_backward",
        "log_sigmoid_forward",
        "log_sigmoid_backward",
    ]
)
# Ops along one dimension that keep the shape; the dimension is the second argument.
_ALONG_DIM = frozenset(
    ["_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp", "_safe_softmax"]
)
# Ops that only put values elsewhere.
_MOVES_VALUES = frozenset(
    [
        "_unsafe_view",
        "cat",
        "constant_pad_nd",
        "embedding",
        "flip",
        "gather",
        "index",
        "index_put",
        "index_put_",
        "index_select",
        "masked_select",
        "repeat",
        "roll",
        "scatter",
        "select_backward",
        "slice_backward",
        "slice_scatter",
        "stack",
        "split_with_sizes_copy",
        "take_along_dim",
    ]
)
# The position of an argument that asks for a 32-bit result of a 16-bit input.
_HALF_TO_FLOAT = {"_softmax": 2, "_log_softmax": 2}


def base(op: str) -> str:
    """Return ``mm`` for ``aten.mm.default``."""
    return op.split(".")[1] if "." in op else op


def is_draw(op: str) -> bool:
    """The result is drawn from a generator."""
    return base(op) in _DRAWS


def is_dropout(op: str) -> bool:
    """Returns (input · mask / (1 − p), mask)."""
    return base(op) in _DROPOUTS


def is_unscale(op: str) -> bool:
    """GradScaler's check of the gradients and division by the scale."""
    return base(op) in _UNSCALES


def keeps_format(op: str) -> bool:
    """Runs in the recorded formats only."""
    return base(op) in _OWN_FORMAT


def overwrites(op: str) -> bool:
    """Writes its first argument without reading it."""
    return base(op) in _OVERWRITES


def wants_grad_mode(op: str) -> bool:
    """Keeps a workspace for its backward only while gradient mode is on."""
    return base(op) in _GRAD_MODE


def is_uninitialised(op: str) -> bool:
    """Result is whatever was in memory."""
    return base(op) in _UNINITIALISED


def is_foreach(op: str) -> bool:
    """Does the same to each item of its lists: what it makes of items i depends on those only."""
    return base(op).startswith(("_foreach_", "_fused_", "_amp_foreach_"))


@cache
def is_elementwise(op: str) -> bool:
    """Every output element is made of the input elements that are broadcast to it."""
    if base(op) in _ELEMENTWISE:
        return True
    try:
        return torch.Tag.pointwise in resolve(op).tags
    except ReplayError:
        return False


def runs_along_dim(op: str) -> bool:
    """Keeps the shape; an output element is made of the input's line along one dimension."""
    return base(op) in _ALONG_DIM


def is_sum(op: str) -> bool:
    """Adds or subtracts its operands."""
    return base(op).strip("_").removeprefix("foreach_") in ("add", "sub", "rsub")


def moves_values(op: str) -> bool:
    """Puts the values of its inputs elsewhere and computes nothing."""
    return base(op) in _MOVES_VALUES


def half_to_float_argument(op: str) -> int | None:
    """Return the position of the flag "16-bit in, 32-bit out", which wide inputs must not set."""
    return _HALF_TO_FLOAT.get(base(op))


@cache
def written_arguments(op: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the positions and the names of the arguments that the schema says are written."""
    try:
        arguments = resolve(op)._schema.arguments
    except ReplayError:
        return (), ()
    written = [a.alias_info is not None and a.alias_info.is_write for a in arguments]
    by_name = tuple(a.name for a, w in zip(arguments, written, strict=True) if w)
    return tuple(i for i, w in enumerate(written) if w), by_name


@cache
def resolve(op: str) -> Any:
    """Return the callable overload for ``aten.mm.default``; raises ReplayError if there is none."""
    parts = op.split(".")
    try:
        if len(parts) != 3:
            raise AttributeError(op)
        return getattr(getattr(getattr(torch.ops, parts[0]), parts[1]), parts[2])
    except (AttributeError, RuntimeError) as error:
        raise ReplayError(
            f"this torch ({torch.__version__}) has no op {op!r}; replay with the torch of the run",
            "unknown-op",
        ) from error
