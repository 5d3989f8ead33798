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
        "poisson",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "random_",
        "randperm",
        "uniform_",
        "_standard_gamma",
        "_sample_dirichlet",
        "rrelu_with_noise",
        "rrelu_with_noise_",
    ]
)
_DROPOUTS = frozenset(["native_dropout"])
# Kernels that exist for the recorded formats only.
_OWN_FORMAT = frozenset(
    [
        "_amp_update_scale_",
        "_amp_foreach_non_finite_check_and_unscale_",
        "mkldnn_rnn_layer",
        "mkldnn_rnn_layer_backward",
    ]
)
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


def base(op: str) -> str:
    """Return ``mm`` for ``aten.mm.default``."""
    return op.split(".")[1] if "." in op else op


def is_draw(op: str) -> bool:
    """The result is drawn from a generator."""
    return base(op) in _DRAWS


def is_dropout(op: str) -> bool:
    """Returns (input · mask / (1 − p), mask)."""
    return base(op) in _DROPOUTS


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
