"""What the recorder must know of one ATen overload, read off its schema once.

Must not know tapes or steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

_UNINITIALISED = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided",
                  "empty_permuted", "resize_")  # fmt: skip
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
        "cauchy_",
        "geometric_",
        "log_normal_",
        "_foreach_zero_",
        "_foreach_copy_",
    ]
)
# Running statistics these overloads update although their schemas do not say so.
_UNDECLARED_WRITES = {
    "aten.native_batch_norm.default": (3, 4),
    "aten.cudnn_batch_norm.default": (3, 4),
    "aten.miopen_batch_norm.default": (3, 4),
}
_UNRECORDED_NAMESPACES = ("profiler", "prim")


@dataclass(frozen=True, slots=True)
class OpInfo:
    """Facts of one overload."""

    name: str  # "aten.mm.default"
    skip: bool  # carries script objects or does nothing: passed through unrecorded
    alias: bool  # every output is a view of an input, nothing is written
    random: bool  # draws from a generator (or may)
    uninitialised: bool  # output values are whatever was in memory
    written_args: tuple[int, ...]  # positions of arguments written in place
    written_kwargs: tuple[str, ...]  # names of keyword arguments written in place
    screened: bool  # outputs are looked at for inf and NaN
    overwrites: bool = False  # what it writes in place it does not read
    higher_order: bool = False  # torch.cond, flex_attention: recorded, not replayed


_KNOWN: dict[Any, OpInfo] = {}


def op_info(func: Any) -> OpInfo:
    """Return the facts of an ``OpOverload`` (or higher-order operator), computed once."""
    info = _KNOWN.get(func)
    if info is None:
        info = _KNOWN[func] = _read(func)
    return info


def _read(func: Any) -> OpInfo:
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order operator
        return OpInfo(str(func), False, False, False, False, (), (), True, higher_order=True)
    namespace, _, rest = schema.name.partition("::")
    name = f"{namespace}.{rest}.{schema.overload_name or 'default'}"
    positional = [a for a in schema.arguments if not a.kwarg_only]
    written = tuple(i for i, a in enumerate(positional) if _is_write(a))
    written += _UNDECLARED_WRITES.get(name, ())
    by_name = tuple(a.name for a in schema.arguments if a.kwarg_only and _is_write(a))
    uninitialised = rest in _UNINITIALISED
    return OpInfo(
        name=name,
        skip=namespace in _UNRECORDED_NAMESPACES,
        alias=_is_alias(schema) and not written and not by_name,
        random=torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()),
        uninitialised=uninitialised,
        written_args=written,
        written_kwargs=by_name,
        screened=not uninitialised,
        overwrites=rest in _OVERWRITES or "out" in schema.overload_name,
    )


def _is_write(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _is_alias(schema: Any) -> bool:
    outs = schema.returns
    return bool(outs) and all(r.alias_info is not None and not r.alias_info.is_write for r in outs)
