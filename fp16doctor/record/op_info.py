"""What the recorder must know of one ATen overload, read off its schema once.

Must not know tapes or steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

_UNINITIALISED = frozenset((
    "empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted",
    "resize_",
))  # fmt: skip
# In-place ops that do not read what they overwrite.
_OVERWRITES = frozenset((
    "copy_", "fill_", "zero_", "_foreach_zero_", "_foreach_copy_", "normal_", "uniform_",
    "bernoulli_", "random_", "exponential_", "cauchy_", "geometric_", "log_normal_",
))  # fmt: skip
# What they return is finite wherever all they read is: they move, select or shrink numbers.
_KEEPS_FINITE = frozenset((
    "clone", "relu", "relu_", "threshold_backward", "max_pool2d_with_indices", "_unsafe_view",
    "cat", "stack", "repeat", "index_select", "gather", "slice_backward", "select_backward",
    "neg", "abs", "tanh", "sigmoid", "transpose_copy", "permute_copy",
))  # fmt: skip
# Running statistics these overloads update although their schemas do not say so.
_UNDECLARED_WRITES = {
    "aten.native_batch_norm.default": (3, 4),
    "aten.cudnn_batch_norm.default": (3, 4),
    "aten.miopen_batch_norm.default": (3, 4),
    "aten.batch_norm_update_stats.default": (1, 2),
    "aten.batch_norm_gather_stats.default": (3, 4),
    "aten.batch_norm_gather_stats_with_counts.default": (3, 4),
}
_UNRECORDED_NAMESPACES = ("profiler", "prim")
# Collectives: asynchronous, they need every rank, and their handles must not outlive the group.
_COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional", "symm_mem")

LOSS_SEED = "aten.ones_like.default"  # how autograd seeds the gradient of a loss
SCALE_UPDATE = "aten._amp_update_scale_.default"  # GradScaler's verdict on a step


@dataclass(frozen=True, slots=True)
class OpInfo:
    """Facts of one overload."""

    func: Any  # the overload; held so that its id stays its own
    name: str  # "aten.mm.default"
    skip: bool = False  # carries script objects or does nothing: passed through unrecorded
    alias: bool = False  # every output is a view of an input, nothing is written
    random: bool = False  # draws from a generator (or may)
    uninitialised: bool = False  # output values are whatever was in memory
    written_args: tuple[int, ...] = ()  # positions of arguments written in place
    written_kwargs: tuple[str, ...] = ()  # names of keyword arguments written in place
    overwrites: bool = False  # what it writes in place it does not read
    opaque: bool = False  # recorded, never replayed: higher-order ops, collectives
    noted: bool = False  # tells of losses or loss scales
    keeps_finite: bool = False  # finite arguments give finite results

    @property
    def writes(self) -> bool:
        """It writes to an argument."""
        return bool(self.written_args or self.written_kwargs)


# By id: an overload computes its hash in Python, every time.
_KNOWN: dict[int, OpInfo] = {}


def op_info(func: Any) -> OpInfo:
    """Return the facts of an ``OpOverload`` (or higher-order operator), computed once."""
    info = _KNOWN.get(id(func))
    if info is None:
        info = _KNOWN[id(func)] = _read(func)
    return info


def _read(func: Any) -> OpInfo:
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order operator: torch.cond, flex_attention
        return OpInfo(func, f"higher_order.{func}.default", opaque=True)
    namespace, _, rest = schema.name.partition("::")
    name = f"{namespace}.{rest}.{schema.overload_name or 'default'}"
    opaque = namespace in _COLLECTIVES
    positional = [a for a in schema.arguments if not a.kwarg_only]
    written = tuple(i for i, a in enumerate(positional) if _is_write(a) or opaque)
    written += _UNDECLARED_WRITES.get(name, ())
    by_name = tuple(a.name for a in schema.arguments if a.kwarg_only and _is_write(a))
    return OpInfo(
        func,
        name=name,
        skip=namespace in _UNRECORDED_NAMESPACES,
        alias=_is_alias(schema) and not written and not by_name,
        random=torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()),
        uninitialised=rest in _UNINITIALISED,
        written_args=written,
        written_kwargs=by_name,
        overwrites=rest in _OVERWRITES or "out" in schema.overload_name,
        opaque=opaque,
        noted=name in (LOSS_SEED, SCALE_UPDATE),
        keeps_finite=namespace == "aten" and rest in _KEEPS_FINITE,
    )


def _is_write(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _is_alias(schema: Any) -> bool:
    outs = schema.returns
    return bool(outs) and all(r.alias_info is not None and not r.alias_info.is_write for r in outs)
